"""The result of a decision: facts to apply, then effects to carry out."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.core.effects import Effect
from agent.core.facts import Fact


@dataclass(slots=True)
class Decision:
    facts: list[Fact] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
