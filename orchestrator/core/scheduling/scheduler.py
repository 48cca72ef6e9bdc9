"""Reasons for waiting, in words. A queue is ordered by priority, then by submission."""

from __future__ import annotations

from bisect import bisect_left

from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.placement import Waiting, never_fits, place
from orchestrator.core.scheduling.restore_hold import (
    why_held,
    why_job_held,
)


def may_place(state: State, fact: f.Fact) -> bool:
    """Whether this fact may let a gang be placed that could not be placed before."""
    if isinstance(fact, f.TaskCleaned | f.TaskLost):
        # All other tasks keep their nodes until their attempt is closed.
        attempt = state.attempt(fact.job, fact.attempt)
        return attempt is not None and not attempt.tasks[fact.rank].present
    return fact.reschedules


class WaitingReasons:
    """Sentences on why queued jobs have not been placed, from the scheduler's own reasons.

    Use one for all jobs of a list: the first job of each queue is judged once, however many jobs
    wait behind it. The state must not change meanwhile.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._first: dict[str, str] = {}

    def why(self, job: Job) -> str:
        """Return the sentence on one job."""
        state, pool = self._state, job.spec.pool
        if state.disk_full:
            return f"no job is started: {state.disk_full}"
        if held := why_held(state):
            return held
        queue = state.queues[pool]
        ahead = bisect_left(queue, (-job.spec.priority, job.id))
        if ahead == 0:
            return _why_not(state, job) or "is being placed"
        if pool not in self._first:
            self._first[pool] = _first_of(state, state.jobs[queue[0][1]])
        return f"{ahead} ahead in pool {pool}; first is {self._first[pool]}"


def why_waiting(state: State, job: Job) -> str:
    """Return the sentence on why one queued job has not been placed."""
    return WaitingReasons(state).why(job)


def _first_of(state: State, head: Job) -> str:
    way_on = f"it is held (muster hold {head.id}), cancelled, or fits again"
    why = _why_not(state, head, f"; the others wait until {way_on}")
    because = f", which {why}" if why else ""
    return f"job {head.id} (priority {head.spec.priority}){because}"


def _why_not(state: State, job: Job, then: str = "") -> str:
    """Why the head of a queue has no nodes; empty if it could have some.

    Appends `then` if the known nodes can never hold the job.
    """
    if held := why_job_held(state, job):
        return held
    found = place(state, job)
    if not isinstance(found, Waiting):
        return ""
    impossible = never_fits(state, job.spec)
    return found.text if impossible is None else f"cannot start: {impossible}{then}"
