"""Planted bugs of the host table: written too late, taken back too early, or left behind."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.core import effects as a
from agent.core import facts as agent_facts
from agent.core.network_phase import NetworkPhase
from agent.core.state import HeldTask, State
from agent.core.task import task_state
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.planting import AGENT, everywhere


def _clean_with_names(state: State, effect: a.Effect) -> list[a.Effect]:
    if isinstance(effect, a.SendReport) and isinstance(effect.report, TaskReport):
        report = effect.report
        held = state.tasks.get(report.task)
        if held is not None and held.status is not None and held.status.phase.terminal:
            return [a.SendReport(msgspec.structs.replace(report, state=TaskState.CLEANED))]
    return [effect]


def _forgets_earlier_lives(state: State, fact: object) -> None:
    if isinstance(fact, agent_facts.TaskAdopted):
        state.tasks[fact.task].network = NetworkPhase.NONE


def _left_there(_: State, effect: a.Effect) -> list[a.Effect]:
    return [] if isinstance(effect, a.RestoreNetwork) else [effect]


def _arranged_unproved(real: Any) -> Any:
    def task_state(held: HeldTask) -> TaskState:
        found: TaskState = real(held)
        planned = found is TaskState.PREPARED and held.arrange is not None
        return TaskState.ARRANGED if planned else found

    return task_state


MUTANTS = (
    Mutant(
        "a task is called clean while its names are there",
        AGENT.effects(_clean_with_names),
        ("hosts",),
        seed=1,
    ),
    Mutant(
        "names that an earlier life of the agent wrote are left",
        AGENT.state(_forgets_earlier_lives),
        ("hosts",),
        seed=3,
    ),
    Mutant(
        "nobody takes the names back",
        AGENT.effects(_left_there),
        ("I10", "I4"),
        seed=1,
    ),
    Mutant(
        "a plan is enough to start",
        everywhere(task_state, _arranged_unproved),
        ("hosts",),
        seed=170,
    ),
)
