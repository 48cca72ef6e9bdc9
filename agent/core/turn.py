"""A turn of an agent: an input and everything that follows from it."""

from __future__ import annotations

from agent.core.apply import apply
from agent.core.decide import decide
from agent.core.effects import Effect
from agent.core.inputs import Input
from agent.core.react import react
from agent.core.state import State
from muster.protocol.instant import Instant


def turn(state: State, received: Input, now: Instant) -> list[Effect]:
    """Advance `state` by one input and return the effects, in order."""
    decision = decide(state, received, now)
    effects = list(decision.effects)
    for fact in decision.facts:
        apply(state, fact)
        effects += react(state, fact, now)
    return effects
