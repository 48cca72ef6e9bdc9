"""Forecast: the latest start of a waiting job by the plan of the queues, and what it waits for."""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster.fabric.natural_sort import natural
from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.text import count, named
from orchestrator.core.model.plan import Booking, QueuePlan
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.forecast import Forecast, drained_nodes
from orchestrator.core.scheduling.gpus import used_by_strangers
from orchestrator.core.scheduling.outlook import Outlook
from orchestrator.core.scheduling.placement import unfit
from orchestrator.core.scheduling.reasons import cannot_start, jobs_named

NAMED_MAX = 4


def planned_forecast(state: State, job: Job, it: Outlook, now: Instant) -> Forecast:
    """The forecast for a job of a pool with backfill that does not start now."""
    booking = it.booking
    if booking is None:
        return Forecast(None, _unplanned(state, job))
    if booking.start == math.inf:
        return Forecast(None, _endless(state, job, it.plan))
    promised = it.plan.promises.get(job.id, math.inf)
    # After a restart, a promise is unknown until the booked nodes are back.
    start = max(booking.start, promised) if promised < math.inf else booking.start
    return Forecast(max(0.0, start - now.mono), _ends_before(state, job, booking, it.plan))


def _ends_before(state: State, job: Job, booking: Booking, plan: QueuePlan) -> str:
    """The jobs that hold the booked nodes until the job starts."""
    holders: dict[JobId, list[NodeName]] = {}
    # A pass that is not over may have bookings of a node that was removed.
    there = [name for name in booking.nodes if name in state.nodes]
    for name in there:
        for holder, _ in state.nodes[name].holders:
            if holder in plan.ends and plan.ends[holder].at > booking.start:
                continue  # it keeps another part of the node
            holders.setdefault(holder, []).append(name)
    parts = [
        f"job {holder} ends on {_some(nodes)} by then" for holder, nodes in sorted(holders.items())
    ]
    before = [
        name
        for name, other in plan.bookings.items()
        if name != job.id and other.end <= booking.start and set(other.nodes) & set(booking.nodes)
    ]
    parts += [f"job {name} starts there before, and ends by then" for name in sorted(before)]
    away = [name for name in there if state.nodes[name].session is None]
    if away:
        parts.append(f"{_some(away)} may be back by then")
    more = f", and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
    return ", ".join(parts[:NAMED_MAX]) + more


def _endless(state: State, job: Job, plan: QueuePlan) -> str:
    """The jobs without a time limit for whose end the job waits."""
    fitting = [it for it in state.nodes.values() if unfit(job.spec, it) is None and it.in_service]
    holders = {name for it in fitting for name, _ in it.holders}
    mine = (-job.spec.priority, job.id)
    holders |= {
        name
        for name in plan.bookings
        if name != job.id and (-state.jobs[name].spec.priority, name) < mine
    }
    endless = [name for name in sorted(holders) if state.jobs[name].spec.time_limit_s is None]
    away = len([node for node in fitting if node.session is None])
    if len(fitting) - away < job.spec.nodes:
        return f"unknown: waits for {count(away, 'node')} to come back"
    if not endless:
        return "unknown: the starts of jobs before it are unknown"
    have = "has" if len(endless) == 1 else "have"
    return f"unknown: {jobs_named((name, 0) for name in endless)} {have} no time limit"


def _unplanned(state: State, job: Job) -> str:
    fitting = [it for it in state.nodes.values() if unfit(job.spec, it) is None]
    drained = drained_nodes(fitting)
    usable = [it for it in fitting if it.in_service and it.session is not None]
    if len(usable) >= job.spec.nodes:
        refusing = [it.name for it in fitting if cannot_start(job.spec, it) is not None]
        if refusing:
            return f"unknown: waits until {named(refusing)} can start tasks (muster nodes)"
        strange = [it.name for it in fitting if used_by_strangers(it)]
        if strange:
            return f"unknown: waits for GPUs that foreign processes use, on {named(strange)}"
        horizon = state.policy(job.spec.pool).horizon
        return f"unknown: only the first {horizon} waiting jobs of a pool have a planned start"
    if drained:
        return f"unknown: waits for a drained node to be resumed: {named(drained)}"
    away = len([node for node in fitting if node.session is None])
    if away:
        return f"unknown: waits for {count(away, 'node')} to come back"
    return "never: it does not fit the known nodes"


def _some(nodes: Iterable[NodeName]) -> str:
    return named(sorted(nodes, key=natural), NAMED_MAX)
