"""One turn of an agent: a stimulus and everything that follows from it."""

from __future__ import annotations

from agent.core.apply import apply
from agent.core.decide import decide
from agent.core.effects import Action
from agent.core.inputs import Stimulus
from agent.core.react import follow
from agent.core.state import State
from muster.protocol.instant import Instant


def turn(state: State, stimulus: Stimulus, now: Instant) -> list[Action]:
    """Advance `state` by one stimulus and say what to do, in order."""
    decision = decide(state, stimulus, now)
    actions = list(decision.actions)
    for fact in decision.facts:
        apply(state, fact)
        actions += follow(state, fact, now)
    return actions
