"""Planned ends of jobs: how long one may hold its nodes, and when an attempt has released them."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import structs

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.spec.model import JobSpec
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.grace import stop_grace_s
from orchestrator.core.model.leases import over_at
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import Deadline, PlannedEnd
from orchestrator.core.model.state import Attempt, Job, State

START_S: Final = 60.0
"""Time planned from the placement of a gang to the start of its time limit."""
CLEAN_S: Final = 10.0
"""Time planned from the end of the grace period until the nodes are free."""
LATER_S: Final = 1.0
"""A start that is later by less is the same promise."""
SLIP_S: Final = 60.0
"""An attempt that is late is planned to end this much later than planned, then twice as much."""


def duration_s(spec: JobSpec) -> float:
    """The longest time that a job holds its nodes; infinite without a time limit."""
    if spec.time_limit_s is None:
        return math.inf
    return START_S + spec.time_limit_s + spec.stop.grace_s + CLEAN_S


def planned_end(
    state: State,
    job: Job,
    before: PlannedEnd | None,
    now: Instant,
    drained: AbstractSet[NodeName] | None = None,
) -> PlannedEnd:
    """Plan the end of the job's current attempt; keeps the plan if its reasons are the same.

    `drained` are all drained nodes, which a caller with many jobs finds once.
    """
    attempt = job.current
    assert attempt is not None
    if before is not None and before.attempt != attempt.number:
        before = None
    drains: tuple[Deadline, ...] = ()
    began = state.running.get(job.id)
    if attempt.phase is AttemptPhase.STOPPING:
        grace_s = stop_grace_s(job, attempt) or 0.0
        stage, since, limit_s = "stop", 0.0, 0.0
    else:
        stage, since = "start", now.mono
        if began is not None:
            stage, since = "run", began
        elif before is not None and before.stage == stage:
            since = before.since
        limit_s = math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
        grace_s = job.spec.stop.grace_s
        if drained is None or drained:
            drains = _deadlines(state, attempt, () if before is None else before.drains, now)
    if (
        before is not None
        # An agent's repeated report of the start of a run differs slightly from its first one.
        and abs(before.since - since) < CLEAN_S / 2
        and before.stage == stage
        and before.limit_s == limit_s
        and before.grace_s == grace_s
        and before.drains == drains
    ):
        return before
    found = PlannedEnd(attempt.number, stage, since, limit_s, grace_s, drains, 0.0)
    at = _end_at(job, found, now)
    if before is not None and before.at < at < before.at + LATER_S:
        # No event explains so small a delay, and a booking may begin at the earlier time.
        at = before.at
    return structs.replace(found, at=at)


def _deadlines(
    state: State, attempt: Attempt, known: tuple[Deadline, ...], now: Instant
) -> tuple[Deadline, ...]:
    """The deadlines of drained nodes of the attempt.

    One that is known stays as it is: what is left of it was recorded some time ago.
    """
    found = []
    before = {(it.node, it.number): it for it in known}
    for task in attempt.present:
        drain = state.nodes[task.node].drain
        if drain is not None and drain.left_s is not None:
            new = Deadline(task.node, drain.number, now.mono + drain.left_s)
            found.append(before.get((task.node, drain.number), new))
    return tuple(found)


def begun(job: Job, now: Instant, end: float) -> PlannedEnd:
    """The planned end of an attempt that is placed now."""
    limit_s = math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
    grace_s = job.spec.stop.grace_s
    return PlannedEnd(job.next_attempt, "start", now.mono, limit_s, grace_s, (), end)


def _end_at(job: Job, found: PlannedEnd, now: Instant) -> float:
    rest_s = found.grace_s + CLEAN_S
    if found.stage == "stop":
        return now.mono + rest_s
    began = found.since if found.stage == "run" else found.since + START_S
    ends = [began + found.limit_s + rest_s]
    if not job.spec.elastic:
        ends += [it.at + rest_s for it in found.drains]
    return min(ends)


def expected_end(
    state: State,
    job: Job,
    planned: PlannedEnd,
    now: Instant,
    away: AbstractSet[NodeName] | None = None,
) -> float:
    """The time at which the attempt is expected to have released its nodes; later than now.

    `away` are all nodes that are not connected, which a caller with many jobs finds once.
    """
    at = planned.at
    if away is not None and not away:
        return slipped(at, now.mono)
    attempt = job.current
    assert attempt is not None
    # The node of a task that has left an elastic gang may have been removed.
    for task in attempt.present:
        if state.nodes[task.node].link is not LinkState.CONNECTED:
            # Its agent ends the task at the end of the lease, if it has one.
            over = over_at(state, attempt, task)
            at = math.inf if over is None else max(at, over + CLEAN_S)
    return slipped(at, now.mono)


def slipped(at: float, now: float) -> float:
    """The planned time, or if that is over, a later one. It slips ever more seldom."""
    if at > now:
        return at
    step_s = SLIP_S
    while at + step_s <= now:
        step_s *= 2
    return at + step_s
