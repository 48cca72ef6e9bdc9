"""The grace period of an attempt that is being stopped."""

from __future__ import annotations

from muster.protocol.outcome import CauseCode
from orchestrator.core.model.state import Attempt, Job


def stop_grace_s(job: Job, attempt: Attempt) -> float | None:
    """The grace period in seconds, counted from the start of the stop; None if the ranks end by
    themselves."""
    if ends_by_itself(attempt):
        return None
    if is_forced(job, attempt):
        return 0.0
    if attempt.shortened is None or attempt.stopping_at is None:
        return attempt.grace_s
    at, grace_s = attempt.shortened
    return min(attempt.grace_s, max(0.0, at - attempt.stopping_at) + grace_s)


def grace_now_s(attempt: Attempt) -> float:
    """The grace period to send to a node, in seconds. A node counts it from receipt and keeps the
    shorter of the old and the new one."""
    return attempt.grace_s if attempt.shortened is None else attempt.shortened[1]


def is_forced(job: Job, attempt: Attempt) -> bool:
    """True if the ranks are killed without a grace period."""
    return attempt.forced or (job.cancel is not None and job.cancel[3])


def ends_by_itself(attempt: Attempt) -> bool:
    """True if the attempt has completed, so that no rank needs to be stopped."""
    return (
        attempt.cause is not None
        and attempt.cause.code is CauseCode.COMPLETED
        and not attempt.forced
    )
