"""The state of a job as users see it, derived from its phase, attempt and outcome."""

from __future__ import annotations

from typing import assert_never

from muster.protocol.outcome import CauseCode, Outcome
from muster.protocol.states import JobState
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Attempt, Job


def job_state(job: Job) -> JobState:
    """Return the state that users see."""
    match job.phase:
        case JobPhase.QUEUED:
            return JobState.QUEUED
        case JobPhase.HELD:
            return JobState.HELD
        case JobPhase.BACKOFF:
            return JobState.RETRYING
        case JobPhase.ACTIVE:
            return _active(job.attempts[-1])
        case JobPhase.ENDED:
            return _ended(job)
        case _:
            assert_never(job.phase)


def _active(attempt: Attempt) -> JobState:
    match attempt.phase:
        case AttemptPhase.PREPARING | AttemptPhase.ARRANGING:
            return JobState.PREPARING
        case AttemptPhase.RUNNING:
            # RUNNING only once every node has reported its start.
            return JobState.RUNNING if attempt.started_at is not None else JobState.PREPARING
        case AttemptPhase.STOPPING | AttemptPhase.CLOSED:
            return JobState.STOPPING
        case _:
            assert_never(attempt.phase)


def _ended(job: Job) -> JobState:
    if job.cause is None:
        raise AssertionError(f"job {job.id} ended without a cause")
    match job.cause.outcome:
        case Outcome.SUCCESS:
            return JobState.SUCCEEDED
        case Outcome.USER | Outcome.NEVER_STARTED:
            return JobState.FAILED
        case Outcome.INFRA:
            lost = job.cause.code is CauseCode.NODE_LOST
            return JobState.LOST if lost else JobState.FAILED
        case Outcome.TIME_LIMIT:
            return JobState.TIMEOUT
        case Outcome.CANCELLED:
            return JobState.CANCELLED
        case _:
            assert_never(job.cause.outcome)
