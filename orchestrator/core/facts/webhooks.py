"""Facts about webhooks: events to deliver, and the results."""

from __future__ import annotations

import enum

import msgspec

from muster.protocol.ids import JobId


class WebhookEvent(enum.Enum):
    """The events that webhooks report."""

    STARTED = "started"
    RETRYING = "retrying"
    ENDED = "ended"
    IDLE = "idle"
    HUNG = "hung"
    SLOW = "slow"


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class WebhookQueued(_Fact, frozen=True):
    """An event to send to all webhooks of the job. `number` counts the job's events.

    `attempt` is the job's last attempt so far.
    """

    job: JobId
    number: int
    event: WebhookEvent
    attempt: int


class WebhookSettled(_Fact, frozen=True):
    """The webhook at this place of `notify` got the event, or (`problem`) never will."""

    job: JobId
    number: int
    hook: int
    problem: str = ""


class WebhookFailed(_Fact, frozen=True):
    """A delivery failed and will be tried again."""

    job: JobId
    number: int
    hook: int
    problem: str


OfNotices = WebhookQueued | WebhookSettled | WebhookFailed
