"""What the webhooks of a job are to be told, and what came of it."""

from __future__ import annotations

import enum

import msgspec

from muster.protocol.ids import JobId


class WebhookEvent(enum.Enum):
    """What a webhook is told of."""

    STARTED = "started"
    RETRYING = "retrying"
    ENDED = "ended"
    IDLE = "idle"
    HUNG = "hung"
    SLOW = "slow"


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class WebhookQueued(_Fact, frozen=True):
    """All webhooks of the job are to be told; `number` counts what each of them is. `attempt`: the
    last one there was."""

    job: JobId
    number: int
    event: WebhookEvent
    attempt: int


class WebhookSettled(_Fact, frozen=True):
    """The webhook at this place of `notify` was told, or (`problem`) never will be."""

    job: JobId
    number: int
    hook: int
    problem: str = ""


class WebhookFailed(_Fact, frozen=True):
    """It could not be told just now, and will be tried again."""

    job: JobId
    number: int
    hook: int
    problem: str


OfNotices = WebhookQueued | WebhookSettled | WebhookFailed
