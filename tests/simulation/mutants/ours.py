"""The bugs that the simulator found in the cores, planted again."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core import effects as agent_actions
from agent.core import react as agent_follow
from agent.core import task as agent_task
from agent.core.shim_protocol import ShimLease, ShimPhase
from muster.protocol.link.control_channel import Hello, Refused
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs import transitions
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.model.task import reached
from orchestrator.core.nodes import admission
from orchestrator.core.scheduling import placement, scheduler
from orchestrator.core.scheduling.placement import Waiting
from orchestrator.core.scheduling.rendezvous import choose_rendezvous
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _wrap
from tests.simulation.mutants.planting import AGENT


def _arranges_holes(real: Any) -> Any:
    def prepared(state: State, job: Job, attempt: Attempt) -> Decision:
        if all(reached(task.state, TaskState.PREPARED) for task in attempt.tasks):
            arranged = choose_rendezvous(state, attempt)
            return Decision() if isinstance(arranged, Cause) else Decision([arranged])
        decision: Decision = real(state, job, attempt)
        return decision

    return prepared


def _deaf_to_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in (ShimPhase.PREPARED, ShimPhase.STOPPING, ShimPhase.EXITED, ShimPhase.STUCK):
        known = agent_task.LATER[phase] - {ShimPhase.REFUSED}
        monkeypatch.setitem(agent_task.LATER, phase, known)


def _long_grace(_: Any, effect: agent_actions.Effect) -> list[agent_actions.Effect]:
    if isinstance(effect, agent_actions.SendToShim) and isinstance(effect.command, ShimLease):
        lease = ShimLease(effect.command.ttl_s, grace_s=30.0)
        return [agent_actions.SendToShim(effect.task, lease)]
    return [effect]


def _begins_late(real: Any) -> Any:
    """Prepare a new shim whatever has become of the lease."""

    def drive(state: Any, held: Any, now: Any) -> Any:
        answered = state.acknowledged_at
        if answered is None or held.lease_until(answered) > now.mono:
            return real(state, held, now)
        state.acknowledged_at = now.mono
        effects = real(state, held, now)
        state.acknowledged_at = answered
        return effects

    return drive


def _waits_for_the_lost(real: Any) -> Any:
    def place(state: State, job: Job) -> tuple[str, ...] | Waiting:
        fitting = [n for n in state.nodes.values() if placement.unfit(job.spec, n) is None]
        kept = [n for n in fitting if n.name not in job.avoid]
        if len(kept) >= job.spec.nodes and any(placement.busy(state, job.spec, n) for n in kept):
            free = [n for n in kept if placement.busy(state, job.spec, n) is None]
            if len(free) < job.spec.nodes:
                return Waiting(job.spec.nodes, 0, ())
        found: tuple[str, ...] | Waiting = real(state, job)
        return found

    return place


def _only_connected(real: Any) -> Any:
    def refuse(node: Node, hello: Hello, peer: str) -> Refused | None:
        there = node.link is LinkState.CONNECTED
        found: Refused | None = real(node, hello, peer) if there else None
        return found

    return refuse


def _plant_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _waits_for_the_lost(placement.place)
    for module in (placement, scheduler):
        monkeypatch.setattr(module, "place", place)


MUTANTS = (
    Mutant(
        "a gang is arranged around one that refused",
        _wrap(transitions, "_prepared", _arranges_holes),
        ("task", "books", "raised: InvalidTransition"),
        seed=8,
    ),
    Mutant(
        "a refusal goes unheard where something came before it",
        _deaf_to_refusals,
        ("I10", "I4"),
        seed=3,
    ),
    Mutant(
        "what outlives its lease has all of the margin to do so",
        AGENT.effects(_long_grace),
        ("I3", "I4", "I5"),
        seed=46,
    ),
    Mutant(
        "a task is begun on a lease that is over",
        _wrap(agent_follow, "_advance_shim", _begins_late),
        ("I3", "I4", "I5"),
        seed=47,
    ),
    Mutant(
        "a clone takes the name of an agent that is cut off",
        _wrap(admission, "_refuse_second", _only_connected),
        ("I3", "I4", "I5"),
        seed=9,
    ),
    Mutant("a job waits for a node that is gone", _plant_waiting, ("queue", "I10"), seed=12),
)
