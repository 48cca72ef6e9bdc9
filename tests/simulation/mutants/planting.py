"""Ways to plant a bug that name no private function: what goes into a core, what it decides, and
what becomes of its state are public, and outlive a change of the code between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from agent.core.apply import apply as agent_apply
from agent.core.decide import decide as agent_decide
from agent.core.react import react as agent_react
from muster.spec.model import JobSpec
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.decide import decide
from orchestrator.core.engine.react import react
from tests.simulation.leases import with_lease
from tests.simulation.mutants import Patch
from tests.simulation.world import World

_OURS: Final = ("agent.", "orchestrator.", "tests.simulation.")


def everywhere(function: Callable[..., Any], wrapper: Callable[[Any], Any]) -> Patch:
    """Put what `wrapper` makes of a function in its place, in every module that imports it."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        broken, public = wrapper(function), function.__name__
        for name, module in list(sys.modules.items()):
            if name.startswith(_OURS) and getattr(module, public, None) is function:
                monkeypatch.setattr(module, public, broken)

    return patch


@dataclass(frozen=True, slots=True)
class Core:
    """A core by its three functions. Each `change` is called with the state as it is then."""

    decide: Callable[..., Any]
    apply: Callable[..., Any]
    react: Callable[..., Any]

    def inputs(self, change: Callable[[Any, Any], Any]) -> Patch:
        """`change` makes another input of each."""
        return everywhere(
            self.decide,
            lambda real: lambda state, received, *more: real(state, change(state, received), *more),
        )

    def facts(self, change: Callable[[Any, Any], Iterable[Any]]) -> Patch:
        """`change` makes any number of facts of each that is decided."""

        def wrapper(real: Any) -> Any:
            def broken(state: Any, *more: Any) -> Any:
                decision = real(state, *more)
                if not isinstance(decision, list):
                    decision.facts = [x for fact in decision.facts for x in change(state, fact)]
                return decision

            return broken

        return self._deciding(wrapper)

    def effects(self, change: Callable[[Any, Any], Iterable[Any]]) -> Patch:
        """`change` makes any number of effects of each."""

        def wrapper(real: Any) -> Any:
            def broken(state: Any, *more: Any) -> Any:
                decision = real(state, *more)
                if isinstance(decision, list):  # an agent reacts by effects alone
                    return [x for effect in decision for x in change(state, effect)]
                decision.effects = [x for effect in decision.effects for x in change(state, effect)]
                return decision

            return broken

        return self._deciding(wrapper)

    def state(self, change: Callable[[Any, Any], None]) -> Patch:
        """`change` is called with the state and the fact that has just been applied."""

        def wrapper(real: Any) -> Any:
            def broken(state: Any, fact: Any, *more: Any) -> None:
                real(state, fact, *more)
                change(state, fact)

            return broken

        return everywhere(self.apply, wrapper)

    def _deciding(self, wrapper: Callable[[Any], Any]) -> Patch:
        def patch(monkeypatch: pytest.MonkeyPatch) -> None:
            for function in (self.decide, self.react):
                everywhere(function, wrapper)(monkeypatch)

        return patch


def _leased(_: World, __: int, spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(spec, lease_s=60.0)


ALL_LEASED: Final = everywhere(with_lease, lambda _: _leased)
"""Every job has a lease. That is no bug; by chance alone most of one node have none."""

COORDINATOR: Final = Core(decide, apply, react)
AGENT: Final = Core(agent_decide, agent_apply, agent_react)
