"""Planted bugs of what is removed too early, and of what is kept for ever."""

from __future__ import annotations

from typing import Any

from agent.core import apply as agent_evolve
from agent.core import effects as agent_actions
from agent.core import react as agent_follow
from agent.core import task as agent_task
from muster.protocol.states import TaskState
from orchestrator.core.engine import apply
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _wrap


def _removed_with_its_log(real: Any) -> Any:
    def tidy(held: Any) -> list[agent_actions.Effect]:
        found: list[agent_actions.Effect] = real(held)
        cleaned = agent_task.task_state(held) is TaskState.CLEANED
        kept = held.logs_stored or held.no_output
        if held.forgotten and cleaned and not kept:
            found.append(agent_actions.RemoveTask(held.id))
        return found

    return tidy


def _silent_whatever_it_wrote(real: Any) -> Any:
    def apply_held(held: Any, fact: Any) -> None:
        real(held, fact)
        held.no_output = held.status is not None and held.status.phase.terminal

    return apply_held


def _runs_for_ever(real: Any) -> Any:
    def apply_attempt(state: State, fact: Any, at: float) -> None:
        elastic = set(state.elastic)
        real(state, fact, at)
        if isinstance(fact, f.StopRequested):
            state.elastic |= elastic

    return apply_attempt


MUTANTS = (
    Mutant(
        "a task is removed before its log is stored",
        _wrap(agent_follow, "_cleanup", _removed_with_its_log),
        ("I6",),
        seed=1,
    ),
    Mutant(
        "every task is said to have written nothing",
        _wrap(agent_evolve, "_apply_held", _silent_whatever_it_wrote),
        ("I6",),
        seed=1300,
    ),
    Mutant(
        "gangs that have ended are kept among those that may grow",
        _wrap(apply, "_apply_attempt", _runs_for_ever),
        ("I8", "raised", "books", "replay"),
        seed=102,
    ),
)
