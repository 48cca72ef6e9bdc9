"""Observations of tasks by their agents: what a report changes, and the change of the state."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.model.task import OVER
from orchestrator.core.monitoring.checkpoints import checkpoint_facts
from orchestrator.core.monitoring.idle_gpus import idle_over, idle_since

_SILENT_MAX: Final = 16


def observation_facts(
    state: State, job: Job, attempt: Attempt, task: Task, report: TaskReport, now: Instant
) -> list[f.Fact]:
    """Return the facts for what a report says beyond the course of the task.

    They follow the facts about the course: activity and idle GPUs count once the task has started.
    """
    changed = diff(job, task, report, now)
    return [
        *([] if changed == TaskObserved(task.id, now.mono) else [changed]),
        *checkpoint_facts(state, attempt, task, report.observed.checkpoint, now),
        *idle_over(job, attempt, task, report, now),
    ]


def diff(job: Job, task: Task, report: TaskReport, now: Instant) -> TaskObserved:
    """Return the changes that lead from what is known of the task to what the report says."""
    observed = report.observed
    silent = observed.silent[:_SILENT_MAX]
    moves = observed.activity if report.state is TaskState.STARTED else ()
    return TaskObserved(
        task.id,
        now.mono,
        traffic=None if observed.traffic == task.traffic else observed.traffic,
        silent=None if silent == task.silent else silent,
        activity=moves or None,
        idle_since=idle_since(job, task, report, now),
    )


def apply_observations(state: State, fact: TaskObserved) -> None:
    task = state.task(fact.task)
    if task is None:
        return
    # Ignore traffic after the exit: TaskExited has the last report, which is on disk.
    if fact.traffic is not None and task.exit is None and task.state not in OVER:
        task.traffic = fact.traffic
    if fact.silent is not None:
        task.silent = fact.silent
    if fact.activity is not None:
        task.activity, task.activity_at = fact.activity, fact.at
    if fact.idle_since is not UNSET:
        task.idle_since = fact.idle_since
