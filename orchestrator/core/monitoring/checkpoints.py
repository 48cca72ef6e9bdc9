"""Checkpoints of a job: new reports become facts, and attempts without any end the retries.

A file that changed in the job's checkpoint directory is progress, whichever node saw it, even one
that was lost since.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.instant import Instant
from muster.protocol.observations.tasks import Checkpoint
from muster.protocol.outcome import CauseCode
from muster.spec.units import duration_text
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Attempt, Job, LastCheckpoint, State, Task
from orchestrator.core.model.task import OVER

TRIES: Final = 3
"""Number of attempts in a row without a checkpoint after which the job is not retried."""
NAME_CHARS_MAX: Final = 200
_EVERY_S: Final = 5.0
_AGO_MOST_S: Final = 1e9  # bounded, as any reported value is shown


def checkpoint_facts(
    state: State, attempt: Attempt, task: Task, seen: Checkpoint | None, now: Instant
) -> list[f.Fact]:
    """The fact for a checkpoint that a node reports, if it is new.

    If all nodes share the directory, one report suffices: others of the same file are ignored while
    the first node's task is present. Each fact stays in the history of its job, so one task has one
    in `_EVERY_S` at most: its agent looks less often than that.
    """
    if seen is None or task.checkpoint == (seen.fresh, seen.name[:NAME_CHARS_MAX]):
        return []
    if state.jobs[task.job].spec.checkpoint_dir is None or state.disk_full:
        return []
    if 0 <= now.wall - task.checkpoint_at < _EVERY_S:
        return []
    last, name = attempt.checkpoint, seen.name[:NAME_CHARS_MAX]
    if last is not None and last.name == name and last.rank != task.rank:
        first = attempt.tasks[last.rank]
        if first.present and first.state not in OVER:
            return []
    key = (task.job, task.attempt, task.rank)
    return [f.TaskCheckpointed(*key, name, seen.fresh, max(0.0, min(seen.ago_s, _AGO_MOST_S)))]


def apply_checkpoint(attempt: Attempt, task: Task, fact: f.TaskCheckpointed, at: float) -> None:
    task.checkpoint, task.checkpoint_at = (fact.fresh, fact.name), at
    attempt.checkpoint = LastCheckpoint(at - fact.ago_s, fact.name, task.node, fact.rank)


def without_progress(job: Job) -> bool:
    """True if the job's last attempts all ran and left no checkpoint.

    Attempts that a drain ended do not count.
    """
    if job.spec.checkpoint_dir is None:
        return False
    ran = [
        attempt
        for attempt in job.attempts
        if attempt.started_at is not None
        and attempt.cause is not None
        and attempt.cause.code is not CauseCode.DRAINED
    ]
    return len(ran) >= TRIES and all(attempt.checkpoint is None for attempt in ran[-TRIES:])


def checkpoint_text(job: Job, attempt: Attempt, now: Instant) -> str:
    """`last checkpoint 4m ago: step-12000`; empty for a job without a `checkpoint_dir`."""
    if job.spec.checkpoint_dir is None:
        return ""
    found = [
        one.checkpoint for one in job.attempts if one.number <= attempt.number and one.checkpoint
    ]
    if not found:
        return "no checkpoint yet"
    last = found[-1]
    ago_s = float(int(max(0.0, now.wall - last.at)))
    if ago_s >= 120:
        ago_s -= ago_s % 60
    return f"last checkpoint {duration_text(ago_s)} ago: {last.name}"
