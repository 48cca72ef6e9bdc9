"""Late end of an attempt whose nodes ignore its time limit, because a shim hangs or an agent lies.

Nodes keep time limits themselves. The coordinator waits for them beyond any difference of clocks,
and judges only nodes that are connected: a silent node may have ended its ranks in time.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import NodeName
from muster.protocol.instant import ROUNDING_S, Instant
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from muster.protocol.text import named
from orchestrator.core.facts import effects as a
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import stop
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import DRIFT
from orchestrator.core.model.state import Attempt, Job, State

LATE_S: Final = 30.0
"""The wait for a node's report beyond the limit, and for the end of ranks on a node that has just
connected. Longer than the silence after which a node does not count as connected."""


def limit_timer(state: State, job: Job, now: Instant) -> list[a.Effect]:
    """Return the timer of a running attempt with a time limit."""
    due = _due(state, job)
    if due is None:
        return []
    timer = a.Timer(a.TimerKind.LIMIT, job=job.id, attempt=job.last_attempt)
    return [a.SetTimer(timer, max(due, now.mono + LATE_S))]


def limit_timers_on(state: State, name: NodeName, now: Instant) -> list[a.Effect]:
    """Return those of the attempts on a node that has just connected."""
    jobs = sorted({job for job, _ in state.nodes[name].holders})
    return [effect for job in jobs for effect in limit_timer(state, state.jobs[job], now)]


def limit_timer_fired(state: State, job: Job, attempt: Attempt, now: Instant) -> Decision:
    """End the attempt if a connected node still runs it."""
    due = _due(state, job)
    if due is None or attempt is not job.attempts[-1]:
        return Decision()
    if now.mono < due - ROUNDING_S:
        return Decision([], limit_timer(state, job, now))
    late = [
        task.node
        for task in attempt.present
        if task.state is TaskState.STARTED
        and state.nodes[task.node].session is not None
        # Later terms are of a limit that a restored journal lacks.
        and task.terms <= attempt.terms
    ]
    if not late:
        return Decision()
    text = (
        f"the time limit of {job.spec.time_limit_s:g} s is over, "
        f"and {named(late)} did not end the ranks"
    )
    return Decision([stop(attempt, Cause(CauseCode.TIME_LIMIT, Outcome.TIME_LIMIT, text))])


def _due(state: State, job: Job) -> float | None:
    since, limit_s = state.running.get(job.id), job.spec.time_limit_s
    running = bool(job.attempts) and job.attempts[-1].phase is AttemptPhase.RUNNING
    if since is None or limit_s is None or not running:
        return None
    return max(since + limit_s * (1 + DRIFT) + LATE_S, state.judged_from)
