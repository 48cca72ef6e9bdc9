"""What follows when an attempt is over: another one, or the end of the job."""

from __future__ import annotations

from collections import Counter
from typing import assert_never

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.messages import PORT_TAKEN, UNREACHABLE
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import JobEnded, RetryScheduled
from orchestrator.core.state import Attempt, Job

TRY_AGAIN_S = 1.0
"""Pause after a fault of the cluster that another node can make good at once."""
COLLISIONS_FREE = 5
"""So many times a port that somebody took costs a job nothing; then something is wrong there."""


def after_attempt(job: Job, attempt: Attempt) -> JobEnded | RetryScheduled:
    """Decide on a closed attempt. A job that was to be cancelled is not tried again."""
    cause = attempt.cause
    if cause is None:
        raise AssertionError(f"attempt {job.id}.{attempt.number} closed without a cause")
    cause = _settled(attempt, cause)
    retry = _retry(job, attempt, cause)
    if retry is None:
        return JobEnded(job.id, cause)
    if job.cancel is not None:
        return JobEnded(job.id, cancelled(job.cancel[0], job.cancel[1]))
    return retry


def cancelled(user: str, reason: str) -> Cause:
    text = f"cancelled by {user}" + (f": {reason}" if reason else "")
    return Cause(CauseCode.CANCELLED, Outcome.CANCELLED, text)


def _settled(attempt: Attempt, cause: Cause) -> Cause:
    """A refusal in which nobody stood ready is the job's own fault, not a node's."""
    if cause.code is not CauseCode.PREPARE_REFUSED or cause.node_fault:
        return cause
    if any(task.prepared is not None for task in attempt.tasks):
        return msgspec.structs.replace(cause, node_fault=True)
    return msgspec.structs.replace(cause, outcome=Outcome.NEVER_STARTED)


def _retry(job: Job, attempt: Attempt, cause: Cause) -> RetryScheduled | None:
    policy = job.spec.retry
    match cause.outcome:
        case Outcome.SUCCESS | Outcome.CANCELLED | Outcome.TIME_LIMIT | Outcome.NEVER_STARTED:
            return None
        case Outcome.USER:
            wanted = not policy.on_exit_codes or cause.exit_code in policy.on_exit_codes
            if job.user_used >= policy.user or not wanted:
                return None
            return RetryScheduled(job.id, "user", policy.backoff_s, tuple(sorted(job.avoid)))
        case Outcome.INFRA:
            if cause.refusal == PORT_TAKEN and _collisions(job) <= COLLISIONS_FREE:
                # The next attempt gets another port.
                return RetryScheduled(job.id, "free", 0.0, tuple(sorted(job.avoid)))
            if job.infra_used >= policy.infra:
                return None
            guilty = _guilty(attempt, cause)
            delay = min(policy.backoff_s, TRY_AGAIN_S) if guilty else policy.backoff_s
            avoid = tuple(sorted(job.avoid | guilty))
            return RetryScheduled(job.id, "infra", delay, avoid)
        case _:
            assert_never(cause.outcome)


def blame(job: Job) -> Counter[NodeName]:
    """In how many attempts of the job each node was at fault."""
    faults = (_guilty(attempt, attempt.cause) for attempt in job.attempts if attempt.cause)
    return Counter(name for guilty in faults for name in guilty)


def _collisions(job: Job) -> int:
    return sum(1 for a in job.attempts if a.cause is not None and a.cause.refusal == PORT_TAKEN)


def _guilty(attempt: Attempt, cause: Cause) -> frozenset[NodeName]:
    """Nodes whose own fault it was: lost ones, those that refused, the one that is named."""
    launcher, *workers = (task.node for task in attempt.tasks)
    if cause.refusal == UNREACHABLE and cause.node == launcher and len(workers) > 1:
        # None of them reached it. Of a pair, either may be to blame.
        return frozenset({launcher})
    named = {
        t.node
        for t in attempt.tasks
        if t.state is TaskState.LOST or (t.refusal is not None and t.refusal.code != PORT_TAKEN)
    }
    if cause.node_fault and cause.node is not None:
        named.add(NodeName(cause.node))
    return frozenset(named)
