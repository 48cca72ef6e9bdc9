"""Facts about gangs whose GPUs are idle."""

from __future__ import annotations

from orchestrator.core.facts.base import (
    EPHEMERAL,
    LAZY,
    SYNC,
    AttemptFact,
    BaseFact,
    Inert,
)


class IdleFact(BaseFact, family=True, reschedules=False, milestone=False):
    """A fact about idle GPUs."""


class IdleTimed(IdleFact, AttemptFact, Inert, durability=EPHEMERAL, revises=False):
    """The idle GPUs were reported to users at `at` (monotonic seconds of this process), or were no
    longer idle then."""

    at: float


class IdleJudged(IdleFact, AttemptFact, durability=SYNC):
    """All GPUs of the gang have been idle for the time that its job configures."""

    text: str

    def describe(self) -> str:
        return self.text


class IdleOver(IdleFact, AttemptFact, Inert, durability=LAZY):
    """A GPU of the gang is busy again, or cannot be read."""

    def describe(self) -> str:
        return "its GPUs are no longer idle, or unreadable"


OfIdle = IdleTimed | IdleJudged | IdleOver
