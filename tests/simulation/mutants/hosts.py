"""Planted bugs of the host table: written too late, taken back too early, or left behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.core import apply as agent_evolve
from agent.core import decide as agent_decide
from agent.core import facts as agent_facts
from agent.core import react as agent_follow
from agent.core import task as agent_task
from agent.core.network_phase import NetworkPhase
from agent.core.state import HeldTask, State
from muster.protocol.control_channel import TaskReport
from muster.protocol.instant import Instant
from muster.protocol.states import TaskState
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put, _wrap


def _clean_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (agent_decide, agent_follow):
        real: Any = module.report

        def report(state: Any, held: HeldTask, now: Instant, real: Any = real) -> TaskReport:
            told: TaskReport = real(state, held, now)
            if held.status is not None and held.status.phase.terminal:
                return msgspec.structs.replace(told, state=TaskState.CLEANED)
            return told

        monkeypatch.setattr(module, "report", report)


def _forgets_earlier_lives(real: Any) -> Any:
    def apply_task(state: State, fact: Any) -> None:
        real(state, fact)
        if isinstance(fact, agent_facts.TaskAdopted):
            state.tasks[fact.task].network = NetworkPhase.NONE

    return apply_task


def _arranged_unproved(held: HeldTask) -> bool:
    return held.arrange is not None


MUTANTS = (
    Mutant(
        "a task is called clean while its names are there", _clean_with_names, ("hosts",), seed=1
    ),
    Mutant(
        "names that an earlier life of the agent wrote are left",
        _wrap(agent_evolve, "_apply_task", _forgets_earlier_lives),
        ("hosts",),
        seed=14,
    ),
    Mutant(
        "nobody takes the names back",
        _put(agent_follow, "_restore", lambda _: []),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "a plan is enough to start",
        _put(agent_task, "_arranged", _arranged_unproved),
        ("hosts",),
        seed=170,
    ),
)
