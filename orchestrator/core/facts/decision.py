"""The result of a decision: facts to record, and effects to carry out afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.facts.effects import Answer, Effect, RequestId, Result
from orchestrator.core.facts.jobs import Fact


@dataclass(slots=True)
class Decision:
    """Facts come before the effects of the same decision, in the order given."""

    facts: list[Fact] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


def answer(request: RequestId, result: Result) -> Decision:
    """Return the decision that only answers a request."""
    return Decision([], [Answer(request, result)])
