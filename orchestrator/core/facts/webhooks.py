"""Facts about webhooks: events to deliver, and the results."""

from __future__ import annotations

import enum

from orchestrator.core.facts.base import (
    EPHEMERAL,
    LAZY,
    SYNC,
    Inert,
    JobFact,
)


class WebhookEvent(enum.Enum):
    """The events that webhooks report."""

    STARTED = "started"
    RETRYING = "retrying"
    ENDED = "ended"
    IDLE = "idle"
    HUNG = "hung"
    SLOW = "slow"


class WebhookFact(JobFact, family=True, reschedules=False, milestone=False):
    """A fact about the `number`-th event of a job."""

    number: int


class WebhookQueued(WebhookFact, Inert, durability=SYNC):
    """An event to send to all webhooks of the job. `number` counts the job's events.

    `attempt` is the job's last attempt so far.
    """

    event: WebhookEvent
    attempt: int

    def describe(self) -> str:
        return f"webhooks to notify: {self.event.value}"


class WebhookSettled(WebhookFact, Inert, durability=LAZY):
    """The webhook at this place of `notify` got the event, or (`problem`) never will.

    `dropped`: because too many notices waited.
    """

    hook: int
    problem: str = ""
    dropped: bool = False

    def describe(self) -> str:
        return f"failed: {self.problem}" if self.problem else "was notified"


class WebhookFailed(WebhookFact, Inert, durability=EPHEMERAL, revises=False):
    """A delivery failed and will be tried again."""

    hook: int
    problem: str


OfWebhooks = WebhookQueued | WebhookSettled | WebhookFailed
