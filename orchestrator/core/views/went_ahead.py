"""Jobs that started before others ahead of them in the queue, and why that delays nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from muster.fabric.natural_sort import natural
from muster.http.explanation import WentAhead
from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.text import listed, named
from muster.protocol.timestamp import timestamp
from orchestrator.core.model.plan import QueuePlan
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.planned_ends import expected_end, planned_end

NAMED_MAX: Final = 20
"""The number of jobs of either kind that are named."""


def went_ahead(
    state: State, job: Job, plan: QueuePlan, now: Instant, sees: Callable[[str], bool]
) -> tuple[WentAhead, ...]:
    """The running jobs that started while `job`, which is ahead of them, waits. `sees` decides of
    each user if their jobs are shown.
    """
    found = [
        WentAhead(other.id, _nodes(other), _why(state, job, other, plan, now))
        for name in sorted(plan.ends)
        if _has_overtaken(other := state.jobs[name], job) and sees(other.user)
    ]
    return tuple(found[:NAMED_MAX])


def ahead_of(state: State, job: Job, now: Instant, sees: Callable[[str], bool]) -> str:
    """The waiting jobs before which a running job started, and why that does not delay them. `sees`
    decides of each user if their jobs are shown.
    """
    plan = state.plan
    if job.id not in plan.ends:
        return ""
    found = [
        f"of job {other.id}: {_why(state, other, job, plan, now)}"
        for other in _before(state, job)
        if _has_overtaken(job, other) and sees(other.user)
    ]
    return listed(found)


def _before(state: State, job: Job) -> Iterator[Job]:
    for rank, name in state.queues.get(job.spec.pool, ()):
        if (rank, name) > _rank(job):
            return
        yield state.jobs[name]


def _rank(job: Job) -> tuple[int, JobId]:
    return -job.spec.priority, job.id


def _has_overtaken(runs: Job, waits: Job) -> bool:
    """True if the job that runs was behind the one that waits when it was placed."""
    attempt = runs.current
    if attempt is None or runs.spec.pool != waits.spec.pool or _rank(runs) < _rank(waits):
        return False
    if any(it.as_submitted.priority != it.spec.priority for it in (runs, waits)):
        return False  # the order may have been another one
    ended = waits.attempts[-1].closed_at if waits.attempts else None
    return max(waits.submitted_at, ended or 0.0) <= attempt.placed_at


def _nodes(job: Job) -> tuple[str, ...]:
    tasks = job.current.present if job.current is not None else []
    return tuple(sorted((task.node for task in tasks), key=natural))


def _why(state: State, waits: Job, runs: Job, plan: QueuePlan, now: Instant) -> str:
    """Return why the job that runs does not delay the one that waits."""
    booking = plan.bookings.get(waits.id)
    if booking is None:
        return f"job {waits.id} has no planned start"
    # The attempt may have started since the last pass.
    planned = planned_end(state, runs, plan.ends[runs.id], now)
    end = expected_end(state, runs, planned, now)
    by = f"it ends by {timestamp(now.wall + end - now.mono):%Y-%m-%dT%H:%M:%SZ}"
    if end <= booking.start < math.inf:
        return f"{by}, before the planned start of job {waits.id}"
    nodes = [name for name in _nodes(runs) if name in booking.nodes]
    if not nodes:
        return f"job {waits.id} does not need {named(_nodes(runs))}"
    if booking.start == math.inf:
        return f"{by}, and the start of job {waits.id} is unknown"
    return "there is room for both"
