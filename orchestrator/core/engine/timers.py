"""Consequences of timers that fire. A stale timer is recognised by the state."""

from __future__ import annotations

from typing import assert_never

from muster.protocol.instant import Instant
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from muster.protocol.text import named
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.queue import QueuesDue
from orchestrator.core.failures.causes import from_record, is_consequence
from orchestrator.core.failures.stops import stop
from orchestrator.core.gangs.late_limit import limit_timer_fired
from orchestrator.core.gangs.refusals import refusal_cause
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.model.task import reached
from orchestrator.core.monitoring import idle_gpus, stack_dumps
from orchestrator.core.monitoring.traffic import not_used, proof_of
from orchestrator.core.nodes.drains import drain_timer, drain_timer_fired
from orchestrator.core.nodes.liveness import node_timer_fired
from orchestrator.core.nodes.peer_reports import silent_one, word_timer_fired


def decide_timer(state: State, timer: a.Timer, now: Instant, limits: Limits) -> Decision:
    match timer.kind:
        case a.TimerKind.NODE:
            return node_timer_fired(state, timer.node, now, limits)
        case a.TimerKind.PEER_REPORT:
            return word_timer_fired(state, timer.node, now, limits)
        case a.TimerKind.DRAIN:
            return drain_timer_fired(state, timer)
        case a.TimerKind.RETRY:
            job = state.jobs.get(timer.job)
            if job is None or job.phase is not JobPhase.BACKOFF:
                return Decision()
            return Decision([f.JobRequeued(job.id)])
        case (
            a.TimerKind.PREPARE
            | a.TimerKind.REFUSED
            | a.TimerKind.ARRANGE
            | a.TimerKind.START
            | a.TimerKind.FAILURE_CAUSE
            | a.TimerKind.TRAFFIC
        ):
            attempt = state.attempt(timer.job, timer.attempt)
            if attempt is None:
                return Decision()
            cause = _overdue(state, timer.kind, attempt, now, limits)
            if cause is None:
                return Decision()
            return Decision([stop(attempt, cause)])
        case a.TimerKind.LIMIT:
            attempt = state.attempt(timer.job, timer.attempt)
            if attempt is None:
                return Decision()
            return limit_timer_fired(state, state.jobs[timer.job], attempt, now)
        case a.TimerKind.HANG | a.TimerKind.STACKS:
            return stack_dumps.timer_fired(state, timer, now, limits)
        case a.TimerKind.IDLE:
            attempt = state.attempt(timer.job, timer.attempt)
            if attempt is None:
                return Decision()
            return idle_gpus.evaluate_idle(state, state.jobs[timer.job], attempt, now)
        case a.TimerKind.QUEUE:
            return Decision([QueuesDue()])
        case _:
            assert_never(timer.kind)


def restart_timers(state: State, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timers of a new process. Time without a coordinator does not count."""
    found: list[a.Effect] = []
    for node in state.nodes.values():
        found += drain_timer(node, now)
    for job in state.jobs.values():
        if job.phase is JobPhase.BACKOFF:
            timer = a.Timer(a.TimerKind.RETRY, job=job.id)
            found.append(a.SetTimer(timer, now.mono + job.retry_after_s))
        attempt = job.current
        if attempt is not None:
            found += phase_timers(attempt, now, limits)
            if _is_refused(attempt):
                timer = a.Timer(a.TimerKind.REFUSED, job=job.id, attempt=attempt.number)
                found.append(a.SetTimer(timer, now.mono + limits.refusal_wait_s))
            if _has_failed(attempt):
                timer = a.Timer(a.TimerKind.FAILURE_CAUSE, job=job.id, attempt=attempt.number)
                found.append(a.SetTimer(timer, now.mono + limits.blame_wait_s))
            found += traffic_timer(job, attempt, now, limits)
    return found


def traffic_timer(job: Job, attempt: Attempt, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timer that ends a gang whose traffic evidence violates `rdma: required`."""
    running = attempt.phase is AttemptPhase.RUNNING
    if not running or attempt.proof is None or not_used(job, attempt.proof) is None:
        return []
    timer = a.Timer(a.TimerKind.TRAFFIC, job=job.id, attempt=attempt.number)
    return [a.SetTimer(timer, now.mono + limits.traffic_wait_s)]


def phase_timers(attempt: Attempt, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timer for the deadline of the attempt's phase. Nodes keep the time limit."""
    match attempt.phase:
        case AttemptPhase.PREPARING:
            kind, seconds = a.TimerKind.PREPARE, limits.prepare_timeout_s
        case AttemptPhase.ARRANGING:
            kind, seconds = a.TimerKind.ARRANGE, limits.arrange_timeout_s
        case AttemptPhase.RUNNING:
            kind, seconds = a.TimerKind.START, limits.start_timeout_s
        case AttemptPhase.STOPPING | AttemptPhase.CLOSED:
            return []
        case _:
            assert_never(attempt.phase)
    timer = a.Timer(kind, job=attempt.job, attempt=attempt.number)
    return [a.SetTimer(timer, now.mono + seconds)]


def _overdue(
    state: State, kind: a.TimerKind, attempt: Attempt, now: Instant, limits: Limits
) -> Cause | None:
    match kind:
        case a.TimerKind.PREPARE:
            if attempt.phase is not AttemptPhase.PREPARING:
                return None
            late = _short_of(attempt, TaskState.PREPARED)
            return _timed_out(
                CauseCode.PREPARE_TIMEOUT, late, f"not ready after {limits.prepare_timeout_s:g} s"
            )
        case a.TimerKind.ARRANGE:
            if attempt.phase is not AttemptPhase.ARRANGING:
                return None
            late = _short_of(attempt, TaskState.ARRANGED)
            return _timed_out(
                CauseCode.ARRANGE_FAILED,
                late,
                f"did not take the gang's plan within {limits.arrange_timeout_s:g} s",
            )
        case a.TimerKind.START:
            if attempt.phase is not AttemptPhase.RUNNING or attempt.started_at is not None:
                return None
            late = _short_of(attempt, TaskState.STARTED)
            return _timed_out(
                CauseCode.START_TIMEOUT, late, f"not started after {limits.start_timeout_s:g} s"
            )
        case a.TimerKind.REFUSED:
            if attempt.phase not in (AttemptPhase.PREPARING, AttemptPhase.ARRANGING):
                return None
            return refusal_cause(attempt)
        case a.TimerKind.FAILURE_CAUSE:
            if attempt.phase is not AttemptPhase.RUNNING:
                return None
            return _blamed(state, attempt, now, limits)
        case a.TimerKind.TRAFFIC:
            if attempt.phase is not AttemptPhase.RUNNING:
                return None
            return not_used(state.jobs[attempt.job], proof_of(attempt))
        case (
            a.TimerKind.NODE
            | a.TimerKind.PEER_REPORT
            | a.TimerKind.RETRY
            | a.TimerKind.DRAIN
            | a.TimerKind.LIMIT
            | a.TimerKind.HANG
            | a.TimerKind.STACKS
            | a.TimerKind.IDLE
            | a.TimerKind.QUEUE
        ):
            raise AssertionError(f"{kind} is no timer of an attempt")
        case _:
            assert_never(kind)


def _blamed(state: State, attempt: Attempt, now: Instant, limits: Limits) -> Cause | None:
    """Return the cause of the earliest suspected failure, as no report named a better one."""
    suspects = [state.suspects[t.id] for t in attempt.present if t.id in state.suspects]
    if suspects:
        first = min(suspects, key=lambda suspect: suspect.ended_at).cause
        if is_consequence(first):
            return silent_one(state, attempt, first, now, limits)
        return first
    # Failures that an earlier process has journaled: agents do not report them again.
    causes = (from_record(task) for task in attempt.present)
    return next((cause for cause in causes if cause is not None), None)


def _is_refused(attempt: Attempt) -> bool:
    starting = attempt.phase in (AttemptPhase.PREPARING, AttemptPhase.ARRANGING)
    return starting and any(t.refusal is not None for t in attempt.tasks)


def _has_failed(attempt: Attempt) -> bool:
    running = attempt.phase is AttemptPhase.RUNNING
    return running and any(t.exit is not None and not t.exit.ok for t in attempt.present)


def _short_of(attempt: Attempt, wanted: TaskState) -> list[Task]:
    return [t for t in attempt.tasks if not reached(t.state, wanted)]


def _timed_out(code: CauseCode, late: list[Task], what: str) -> Cause:
    names = named([task.node for task in late])
    node = late[0].node if len(late) == 1 else None
    return Cause(code, Outcome.INFRA, f"{names}: {what}", node=node, node_fault=node is not None)
