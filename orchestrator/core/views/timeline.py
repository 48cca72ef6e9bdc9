"""The timeline of a job, oldest line first."""

from __future__ import annotations

import math
from typing import Final

from muster.http import views as h
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState, TaskState
from muster.protocol.text import count, named
from muster.protocol.timestamp import timestamp
from muster.spec.units import duration_text
from orchestrator.core.model.state import Attempt, Job, Unreachable

CUTS_TOGETHER_S: Final = 5.0
LATE_S: Final = 10.0


def ended_unseen(attempt: Attempt) -> float | None:
    """Return when the ranks of an attempt ended (UTC seconds), if the end was reported at
    least `LATE_S` later, and None otherwise.
    """
    reported = attempt.closed_at if attempt.stopping_at is None else attempt.stopping_at
    if attempt.started_at is None or reported is None:
        return None
    if any(task.exit is None or not task.ran_s for task in attempt.present):
        return None
    ran_s = max((task.joined_after_s + task.ran_s for task in attempt.present), default=math.inf)
    end = attempt.started_at + ran_s
    return end if reported - end >= LATE_S else None


def timeline(job: Job, state: JobState) -> list[h.Step]:
    """Return the history of a job, oldest first."""
    rerun = "" if job.rerun_of is None else f", job {job.rerun_of} again"
    steps = [h.Step(timestamp(job.submitted_at), f"submitted by {job.user}{rerun}")]
    for attempt in job.attempts:
        first = [task.node for task in attempt.tasks if not task.joined]
        again = f"attempt {attempt.number}: " if attempt.number > 1 else ""
        moments = (
            (attempt.placed_at, f"placed on {named(first)}"),
            (attempt.prepared_at, "every node ready; gang arranged"),
            (attempt.released_at, "start gates opened"),
            (attempt.started_at, "every node started"),
            (attempt.warned_at, "ranks warned that the time limit is near"),
            (ended_unseen(attempt), "every rank ended, which was reported later"),
            *attempt.changes.entries(),
            *_cuts(attempt),
            (attempt.stopping_at, why_stopping(attempt)),
            (attempt.closed_at, _how_closed(attempt)),
        )
        steps += [h.Step(timestamp(at), f"{again}{text}") for at, text in moments if at is not None]
    steps += [h.Step(timestamp(at), text) for at, text in job.notes.entries()]
    steps.sort(key=lambda step: step.at)
    if job.ended_at is not None and job.cause is not None:
        ended = f"{state.value.lower()} (exit code {job.cause.exit_code})"
        steps.append(h.Step(timestamp(job.ended_at), ended))
    return steps


def _cuts(attempt: Attempt) -> list[tuple[float, str]]:
    """Describe nodes that became unreachable or came back, those at the same time in one line."""
    lines: list[list[Unreachable]] = []
    for cut in attempt.cuts:
        last = lines[-1][-1] if lines else None
        if (
            last is None
            or (last.after_s is None) != (cut.after_s is None)
            or cut.at - last.at > CUTS_TOGETHER_S
        ):
            lines.append([cut])
        else:
            lines[-1].append(cut)
    return [(line[0].at, _cut_text(line)) for line in lines]


def _cut_text(line: list[Unreachable]) -> str:
    names = list(dict.fromkeys(cut.node for cut in line))
    who = named(names)
    after_s = max((cut.after_s or 0.0 for cut in line), default=0.0)
    if line[0].after_s is None:
        return f"{who} unreachable, presumed running"
    return f"{who} back after {duration_text(float(round(after_s)))}"


def _how_closed(attempt: Attempt) -> str:
    lost = [t.node for t in attempt.present if t.state is TaskState.LOST]
    return f"{', '.join(lost)} lost, the others clean" if lost else "every node clean"


def why_stopping(attempt: Attempt) -> str:
    cause = attempt.cause
    if cause is None:
        return "stopping"
    if cause.code is CauseCode.COMPLETED:
        return cause.text
    ours = sum(1 for t in attempt.tasks for r in t.ranks if r.rank != cause.rank and r.stopped)
    others = f"; {count(ours, 'rank')} stopped by Muster" if cause.rank is not None and ours else ""
    return f"{cause.text}{others}"
