"""The prospects of one waiting job, from a pass over the queues that changes nothing."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

import msgspec

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from orchestrator.core.facts.jobs import AttemptPlaced
from orchestrator.core.facts.queue import QueuesPlanned
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.plan import Booking, MoveCause, QueueEvent, QueuePlan
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.backfill import schedule


class Outlook(msgspec.Struct, frozen=True):
    """A possible start now, else the booking of the job in the plan of all queues.

    `first` has the nodes of other jobs that start now.
    """

    starts_now: bool
    first: dict[NodeName, JobId]
    booking: Booking | None
    plan: QueuePlan


def outlook(state: State, job: Job, now: Instant) -> Outlook:
    """Judge a waiting job; one that is held or backed off as if it came into its queue now."""
    events = []
    if job.phase is not JobPhase.QUEUED:
        job = replace(job, phase=JobPhase.QUEUED)
        events = [QueueEvent(MoveCause.RELEASE, job.id)]
        queue = list(state.queues.get(job.spec.pool, ()))
        insort(queue, (-job.spec.priority, job.id))
        state = replace(
            state,
            jobs={**state.jobs, job.id: job},
            queues={**state.queues, job.spec.pool: queue},
        )
    facts = schedule(state, events, now, state.plan.lease_s, anew={job.id})
    placed = [it for it in facts if isinstance(it, AttemptPlaced)]
    first = {node: it.job for it in placed if it.job != job.id for node in it.nodes}
    starts = any(it.job == job.id for it in placed)
    plans = [it.plan for it in facts if isinstance(it, QueuesPlanned)]
    plan = plans[-1] if plans else state.plan
    return Outlook(starts, first, plan.bookings.get(job.id), plan)
