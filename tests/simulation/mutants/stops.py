"""Planted bugs of signals, of time limits and of the warning before them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core import effects as agent_actions
from agent.core import react as agent_react
from agent.core.shim_protocol import ShimLimit
from agent.core.state import HeldTask
from agent.core.state import State as AgentState
from muster.protocol.link.control_channel import SignalTask
from muster.protocol.link.terms import Terms
from orchestrator.core.engine import react, timers
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs import commands
from orchestrator.core.gangs.terms import terms_of
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.mutants.planting import AGENT, everywhere
from tests.simulation.shim import Shim


def _numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count(1)
    real = commands.signals

    def signals(*args: Any) -> list[Any]:
        said = real(*args)
        return [SignalTask(it.task, it.signal, next(numbers)) for it in said]  # type: ignore[union-attr]

    monkeypatch.setattr(commands, "signals", signals)
    monkeypatch.setattr(react, "signals", signals)


def _warns_nobody(_: AgentState, effect: agent_actions.Effect) -> list[agent_actions.Effect]:
    if isinstance(effect, agent_actions.SendToShim) and isinstance(effect.command, ShimLimit):
        known = effect.command
        return [agent_actions.SendToShim(effect.task, ShimLimit(known.number, known.limit_s))]
    return [effect]


def _endless(real: Any) -> Any:
    def terms_of(*given: Any) -> Terms:
        whole: Terms = real(*given)
        return replace(whole, limit_s=None, warn_s=None)

    return terms_of


def _without_fallback(patch: Patch) -> Patch:
    """The bug in a coordinator that leaves time limits to the nodes alone."""

    def both(monkeypatch: pytest.MonkeyPatch) -> None:
        patch(monkeypatch)
        monkeypatch.setattr(timers, "limit_timer_fired", lambda *_: Decision())

    return both


def _forgets_with_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the shim nor the next agent process knows the limit."""
    is_alone, send = Shim.alone, agent_react.limit_command

    def alone(shim: Shim) -> None:
        is_alone(shim)
        if shim.started_at is not None:
            shim.limit.newest = None

    def limit(held: HeldTask) -> list[agent_actions.Effect]:
        is_adopted = held.prepare is None
        return [] if is_adopted else send(held)

    monkeypatch.setattr(Shim, "alone", alone)
    monkeypatch.setattr(agent_react, "limit_command", limit)


def _from_the_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next agent process gives a task that it finds its whole limit again."""
    real = agent_react.limit_command

    def limit(held: HeldTask) -> list[agent_actions.Effect]:
        ran_s = 0.0 if held.status is None else held.status.running_s or 0.0
        for effect in real(held):
            assert isinstance(effect, agent_actions.SendToShim)
            known = effect.command
            assert isinstance(known, ShimLimit)
            limit_s = None if known.limit_s is None else known.limit_s + ran_s
            moved = ShimLimit(known.number + int(ran_s), limit_s)
            return [agent_actions.SendToShim(held.id, moved)]
        return []

    monkeypatch.setattr(agent_react, "limit_command", limit)


MUTANTS = (
    Mutant("a signal that is said again is another one", _numbered_anew, ("warn",), seed=213),
    Mutant("a node warns nobody", AGENT.effects(_warns_nobody), ("warn",), seed=109),
    Mutant(
        "a time limit is never sent",
        _without_fallback(everywhere(terms_of, _endless)),
        ("limit", "I10"),
        seed=11,
    ),
    Mutant(
        "a node forgets a time limit as its agent ends",
        _without_fallback(_forgets_with_its_agent),
        ("limit", "I10"),
        seed=3,
    ),
    Mutant(
        "a time limit counts from the last start of the agent",
        _from_the_adoption,
        ("limit",),
        seed=3,
    ),
)
