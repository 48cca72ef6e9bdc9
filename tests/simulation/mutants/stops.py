"""Planted bugs of the warning before a time limit."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from muster.protocol.link.control_channel import SignalTask
from orchestrator.core.engine import react
from orchestrator.core.facts import effects as a
from orchestrator.core.gangs import commands
from orchestrator.core.model.state import State
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.planting import COORDINATOR


def _numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count(1)
    real = commands.signals

    def signals(*args: Any) -> list[Any]:
        said = real(*args)
        return [SignalTask(it.task, it.signal, next(numbers)) for it in said]  # type: ignore[union-attr]

    monkeypatch.setattr(commands, "signals", signals)
    monkeypatch.setattr(react, "signals", signals)


def _warns_nobody(_: State, effect: a.Effect) -> list[a.Effect]:
    warning = isinstance(effect, a.Send) and isinstance(effect.command, SignalTask)
    return [] if warning else [effect]


MUTANTS = (
    Mutant("a warning that is said again is another one", _numbered_anew, ("warn",), seed=113),
    Mutant(
        "a warning is recorded and not sent",
        COORDINATOR.effects(_warns_nobody),
        ("warn",),
        seed=109,
    ),
)
