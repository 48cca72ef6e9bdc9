"""Planted bugs of what is removed too early, and of what is kept for ever."""

from __future__ import annotations

from agent.core import effects as agent_actions
from agent.core.shim_protocol import ShimRelease
from agent.core.state import State as AgentState
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import State
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.planting import AGENT, COORDINATOR


def _removed_with_its_log(
    _: AgentState, effect: agent_actions.Effect
) -> list[agent_actions.Effect]:
    """Forget it once its shim may go."""
    if isinstance(effect, agent_actions.SendToShim) and isinstance(effect.command, ShimRelease):
        return [effect, agent_actions.RemoveTask(effect.task)]
    return [effect]


def _silent_whatever_it_wrote(state: AgentState, _: object) -> None:
    for held in state.tasks.values():
        held.no_output = held.status is not None and held.status.phase.terminal


def _runs_for_ever(state: State, fact: f.Fact) -> None:
    if isinstance(fact, f.StopRequested):
        job = state.jobs[fact.job]
        if job.spec.elastic and job.attempt(fact.attempt).released_at is not None:
            state.elastic.add(job.id)


MUTANTS = (
    Mutant(
        "a task is removed before its log is stored",
        AGENT.effects(_removed_with_its_log),
        ("I6",),
        seed=1,
    ),
    Mutant(
        "every task is said to have written nothing",
        AGENT.state(_silent_whatever_it_wrote),
        ("I6",),
        seed=1301,
    ),
    Mutant(
        "gangs that have ended are kept among those that may grow",
        COORDINATOR.state(_runs_for_ever),
        ("I8", "raised", "books", "replay"),
        seed=102,
    ),
)
