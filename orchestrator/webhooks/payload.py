"""Webhook requests: a JSON body about the job, and signed headers."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, assert_never

import msgspec

from muster.http.views import JobSummary
from muster.protocol.instant import Instant
from muster.protocol.outcome import Cause
from muster.protocol.timestamp import Timestamp, timestamp
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.model.state import Attempt, Job, QueuedWebhook, State
from orchestrator.core.views.display import job_summary

SCHEMA: Final = 1
_GOES_ON: Final = frozenset(
    {nf.WebhookEvent.STARTED, nf.WebhookEvent.IDLE, nf.WebhookEvent.HUNG, nf.WebhookEvent.SLOW}
)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a request. `id` is the same in every delivery of one event. `at` is the time of the
    event, but `job` is its state at delivery. `cause` says why the attempt or job ended, with the
    last lines of the rank that failed first. `text` is the finding for a job that hangs, is slow or
    is idle.
    """

    schema: int = SCHEMA
    id: str
    event: str
    at: Timestamp
    cluster: str
    attempt: int
    job: JobSummary
    cause: Cause | None
    text: str = ""


def message(state: State, job: Job, number: int, webhook: QueuedWebhook, now: Instant) -> Message:
    attempt = job.attempt(webhook.attempt) if webhook.attempt else None
    goes_on = nf.WebhookEvent(webhook.event) in _GOES_ON
    cause = None if attempt is None or goes_on else attempt.cause
    return Message(
        id=f"{state.cluster}-{job.id}-{number}",
        event=webhook.event,
        at=timestamp(webhook.at),
        cluster=state.cluster,
        attempt=webhook.attempt,
        job=job_summary(state, job, now),
        cause=job.cause if webhook.event == "ended" else cause,
        text="" if attempt is None else _found(attempt, webhook),
    )


def _found(attempt: Attempt, webhook: QueuedWebhook) -> str:
    """Return the sentence that triggered the event, though the condition may be over by now."""
    event = nf.WebhookEvent(webhook.event)
    match event:
        case nf.WebhookEvent.IDLE:
            return attempt.idle
        case nf.WebhookEvent.HUNG | nf.WebhookEvent.SLOW:
            found = [verdict.text for at, verdict in attempt.hangs if at <= webhook.at]
            return found[-1] if found else ""
        case nf.WebhookEvent.STARTED | nf.WebhookEvent.RETRYING | nf.WebhookEvent.ENDED:
            return ""
        case _:
            assert_never(event)


def headers(
    secret: bytes, message: Message, body: bytes, now: Instant, version: str
) -> dict[str, str]:
    """Return the signed headers. The signature covers the time, so that old requests cannot be
    replayed.
    """
    sent = str(int(now.wall))
    return {
        "Content-Type": "application/json",
        "User-Agent": f"muster/{version}",
        "Muster-Event": message.event,
        "Muster-Delivery": message.id,
        "Muster-Timestamp": sent,
        "Muster-Signature": f"sha256={signature(secret, sent, body)}",
    }


def signature(secret: bytes, sent: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of the time, a full stop and the body, in hexadecimal."""
    return hmac.new(secret, f"{sent}.".encode() + body, hashlib.sha256).hexdigest()
