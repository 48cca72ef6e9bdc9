"""Order of the queues: by priority, then by submission, within each pool.

Without backfill, the queue is strict. If the head of a queue cannot start, it holds back the jobs
behind it. Otherwise small jobs would starve a large gang.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from muster.spec.model import JobSpec
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.jobs import AttemptPlaced, JobHeld
from orchestrator.core.model.node import ITSELF, LinkState
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.gpus import given, may_have_room
from orchestrator.core.scheduling.placement import Waiting, never_fits, place, placement_reason
from orchestrator.core.scheduling.restore_hold import (
    is_held,
    unknown_tasks,
    why_held,
    why_job_held,
)

_ERROR_CHARS: Final = 200


def frees_capacity(state: State, fact: f.Fact) -> bool:
    """True if this fact may let a gang be placed that could not be placed before."""
    if isinstance(fact, f.TaskCleaned | f.TaskLost):
        attempt = state.attempt(fact.job, fact.attempt)
        return attempt is not None and not attempt.holds(attempt.tasks[fact.rank])
    if isinstance(fact, f.StopRequested):
        attempt = state.attempt(fact.job, fact.attempt)
        return attempt is not None and not all(attempt.holds(task) for task in attempt.tasks)
    return fact.reschedules


def next_placement(state: State) -> AttemptPlaced | JobHeld | None:
    """The next gang that can be placed now, or None. Pools with backfill have `schedule`.

    Once None, it stays None until a fact for which `frees_capacity` is true. A job for which the
    placement itself fails is held, so that it stops neither the others nor the coordinator.
    """
    if state.disk_full or is_held(state):
        return None
    for pool, queue in state.queues.items():
        if not queue or not state.policy(pool).is_strict:
            continue
        job = state.jobs[queue[0][1]]
        try:
            placed = _placement(state, job)
        except Exception as error:  # noqa: BLE001 - any bug
            text = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
            return JobHeld(job.id, ITSELF, f"its placement failed, a bug of muster: {text}")
        if placed is not None:
            return placed
    return None


def _placement(state: State, job: Job) -> AttemptPlaced | None:
    if unknown_tasks(state, job) or not _enough_free(state, job.spec):
        return None
    nodes = place(state, job)
    if isinstance(nodes, Waiting):
        return None
    why = placement_reason(state, job, nodes)
    gpus = tuple(given(state, job.spec, name) for name in nodes)
    return AttemptPlaced(job.id, job.next_attempt, nodes, why, gpus if any(gpus) else ())


def _enough_free(state: State, spec: JobSpec) -> bool:
    """True if enough nodes may have room, without looking at whether they fit.

    A quick check: with a full cluster, whose nodes reconnect one by one after a restart, it saves
    the placement.
    """
    free = 0
    for node in state.nodes.values():
        if node.link is not LinkState.CONNECTED or not node.in_service:
            continue
        if not node.holders or may_have_room(spec, node):
            free += 1
            if free >= spec.nodes:
                return True
    return False


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
        head = state.jobs[queue[0][1]]
        if head.user != job.user:
            # The reason would reveal the head's spec, which only its user may see.
            return f"{ahead} ahead in pool {pool}; first is another user's job"
        if pool not in self._first:
            self._first[pool] = _first_of(state, head)
        return f"{ahead} ahead in pool {pool}; first is {self._first[pool]}"


def why_waiting(state: State, job: Job) -> str:
    """Return the sentence on why one queued job has not been placed."""
    return WaitingReasons(state).why(job)


def _first_of(state: State, head: Job) -> str:
    way_on = f"it is held (muster hold {head.id}), cancelled, or fits again"
    strict = state.policy(head.spec.pool).is_strict
    why = _why_not(state, head, f"; the others wait until {way_on}" if strict else "")
    because = f", which {why}" if why else ""
    return f"job {head.id} (priority {head.spec.priority}){because}"


def _why_not(state: State, job: Job, then: str = "") -> str:
    """Return why the head of a queue has no nodes; empty if it could have some.

    Appends `then` if the known nodes can never hold the job.
    """
    if held := why_job_held(state, job):
        return held
    found = place(state, job)
    if not isinstance(found, Waiting):
        return ""
    impossible = never_fits(state, job.spec)
    return found.text if impossible is None else f"cannot start: {impossible}{then}"
