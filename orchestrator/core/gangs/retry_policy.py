"""The decision at the end of an attempt: retry, or end of the job."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode, headline
from muster.protocol.states import TaskState
from muster.protocol.text import listed, named
from muster.spec.model import Retry
from orchestrator.core.facts.jobs import JobEnded, RetryScheduled
from orchestrator.core.failures.causes import is_consequence
from orchestrator.core.model.blame import guilty_nodes
from orchestrator.core.model.state import Attempt, Job
from orchestrator.core.monitoring.checkpoints import TRIES, without_progress

TRY_AGAIN_S = 1.0
"""Pause after an infrastructure fault that another node can avoid at once."""
COLLISIONS_FREE = 5
"""Number of port collisions that are retried free of charge; more indicate a fault."""

NO_RETRY_EXIT = 93
"""A program that exits with this code asks for no retry, as in NVIDIA's resiliency extension."""

TOLD_MAX = 6
TOLD_CHARS_MAX = 200


def after_attempt(job: Job, attempt: Attempt, *, spare: bool) -> JobEnded | RetryScheduled:
    """Decide on a closed attempt; a job whose cancellation was requested is not retried.

    `spare`: a whole gang could be placed without the nodes on which the job has failed.
    """
    cause = attempt.cause
    if cause is None:
        raise AssertionError(f"attempt {job.id}.{attempt.number} closed without a cause")
    cause = settled(job, attempt, cause, spare=spare)
    if job.cancel is not None and cause.outcome in (Outcome.USER, Outcome.INFRA):
        return JobEnded(job.id, cancelled(job.cancel[0], job.cancel[1]))
    retry = _retry(job, attempt, cause, spare=spare)
    if retry is None:
        return JobEnded(job.id, _with_the_others(job, cause))
    if without_progress(job):
        why = f"no progress: {TRIES} attempts wrote no checkpoint to {job.spec.checkpoint_dir}"
        return JobEnded(job.id, replace(cause, text=f"{cause.text}; not retried, {why}"))
    return retry


def cancelled(user: str, reason: str) -> Cause:
    text = f"cancelled by {user}" + (f": {reason}" if reason else "")
    return Cause(CauseCode.CANCELLED, Outcome.CANCELLED, text)


def settled(job: Job, attempt: Attempt, cause: Cause, *, spare: bool) -> Cause:
    """The cause with the fault assigned, which needs the end of all tasks of the attempt."""
    if is_consequence(cause):
        lost = [t.node for t in attempt.present if t.state is TaskState.LOST]
        if not lost:
            return cause
        return replace(
            cause,
            code=CauseCode.NODE_LOST,
            outcome=Outcome.INFRA,
            text=f"{lost[0]} was lost; {cause.text}",
            node=lost[0],
            node_fault=True,
        )
    if cause.code is not CauseCode.PREPARE_REFUSED or cause.node_fault:
        return cause
    if _is_the_jobs_own(job, cause, spare=spare):
        return replace(cause, outcome=Outcome.NEVER_STARTED)
    return replace(cause, node_fault=True)


def _is_the_jobs_own(job: Job, cause: Cause, *, spare: bool) -> bool:
    """True if the job itself caused the refusal.

    Only if no node ever was prepared, and either two nodes refused alike or no other node is left
    to try. A failing `setup` of a one-node job is always the job's fault.
    """
    tasks = [task for attempt in job.attempts for task in attempt.tasks]
    if any(task.prepared is not None and task.refusal is None for task in tasks):
        return False
    refusers = {t.node for t in tasks if t.refusal is not None and t.refusal.code == cause.refusal}
    alone = job.spec.nodes == 1 and cause.refusal == RefusalCode.SETUP_FAILED
    return len(refusers) > 1 or not spare or alone


def _with_the_others(job: Job, cause: Cause) -> Cause:
    """Add the other nodes' refusals to the end of a job that could not be started."""
    if cause.refusal is None or cause.code is CauseCode.START_FAILED:
        return cause
    said = {
        task.node: headline(task.refusal.text)
        for attempt in job.attempts
        for task in attempt.tasks
        if task.refusal is not None and task.node != cause.node
    }
    own = cause.text.partition("\n")[0]
    refusers = [node for node, text in said.items() if text in own]
    other = [f"{node}: {_short(text)}" for node, text in said.items() if text not in own]
    text = cause.text
    if refusers:
        text += f" | so did {named(refusers)}"
    if other:
        text += f" | also refused by others: {listed(other, TOLD_MAX)}"
    return replace(cause, text=text)


def _short(text: str) -> str:
    return text if len(text) <= TOLD_CHARS_MAX else f"{text[:TOLD_CHARS_MAX]}..."


def _retry(job: Job, attempt: Attempt, cause: Cause, *, spare: bool) -> RetryScheduled | None:
    policy = job.spec.retry
    match cause.outcome:
        case Outcome.SUCCESS | Outcome.CANCELLED | Outcome.TIME_LIMIT | Outcome.NEVER_STARTED:
            return None
        case Outcome.USER:
            if job.user_used >= policy.user or not _worth_a_try(policy, cause):
                return None
            return RetryScheduled(job.id, "user", policy.backoff_s, tuple(sorted(job.avoid)))
        case Outcome.INFRA:
            if cause.code is CauseCode.RDMA_NOT_USED and not cause.node_fault:
                # No node is to blame: RDMA would be unused everywhere.
                return None
            if cause.code is CauseCode.DRAINED:
                # The node was drained, so no retry budget is charged.
                return RetryScheduled(job.id, "free", 0.0, tuple(sorted(job.avoid)))
            if cause.refusal == RefusalCode.PORT_TAKEN and _collisions(job) <= COLLISIONS_FREE:
                # The next attempt gets another port.
                return RetryScheduled(job.id, "free", 0.0, tuple(sorted(job.avoid)))
            if job.infra_used >= policy.infra:
                return None
            guilty = guilty_nodes(attempt, cause)
            # If the refusing nodes have no substitutes, they are asked again, so the pause is
            # longer.
            soon = guilty and (spare or cause.refusal is None)
            delay = min(policy.backoff_s, TRY_AGAIN_S) if soon else policy.backoff_s
            avoid = tuple(sorted(job.avoid | guilty))
            return RetryScheduled(job.id, "infra", delay, avoid)
        case _:
            assert_never(cause.outcome)


def _worth_a_try(policy: Retry, cause: Cause) -> bool:
    if cause.kind in policy.never_on:
        return False
    if policy.on_exit_codes:
        return cause.exit_code in policy.on_exit_codes
    return cause.exit_code != NO_RETRY_EXIT


def _collisions(job: Job) -> int:
    taken = RefusalCode.PORT_TAKEN
    return sum(1 for a in job.attempts if a.cause is not None and a.cause.refusal == taken)
