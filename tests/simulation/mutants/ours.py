"""The bugs that the simulator found in the cores, planted again."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core import effects as agent_actions
from agent.core import task as agent_task
from agent.core.react import react as agent_react
from agent.core.shim_protocol import ShimLease, ShimPhase
from muster.protocol.link.control_channel import Hello, Refused
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs.transitions import task_moved
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Job, State
from orchestrator.core.model.task import reached
from orchestrator.core.nodes.admission import is_outdated, refuse
from orchestrator.core.scheduling import placement, scheduler
from orchestrator.core.scheduling.placement import Waiting
from orchestrator.core.scheduling.rendezvous import choose_rendezvous
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both
from tests.simulation.mutants.planting import AGENT, ALL_LEASED, everywhere


def _arranges_holes(real: Any) -> Any:
    def moved(state: State, fact: f.OfTask, *more: Any) -> Decision:
        attempt = state.jobs[fact.job].attempt(fact.attempt)
        task = attempt.tasks[fact.rank]
        waits = isinstance(fact, f.TaskPrepared) and task.refusal is None and not task.joined
        if waits and all(reached(one.state, TaskState.PREPARED) for one in attempt.tasks):
            arranged = choose_rendezvous(state, attempt)
            return Decision() if isinstance(arranged, Cause) else Decision([arranged])
        decision: Decision = real(state, fact, *more)
        return decision

    return moved


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

    def react(state: Any, fact: Any, now: Any) -> Any:
        answered, held = state.acknowledged_at, state.tasks.get(getattr(fact, "task", None))
        if answered is None or held is None or held.lease_until(answered) > now.mono:
            return real(state, fact, now)
        state.acknowledged_at = now.mono
        effects = real(state, fact, now)
        state.acknowledged_at = answered
        return effects

    return react


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
    def refuse(state: State, hello: Hello, *more: Any) -> Refused | None:
        found: Refused | None = real(state, hello, *more)
        node = state.nodes.get(hello.node)
        away = node is not None and node.link is not LinkState.CONNECTED
        second = found is not None and found.code in ("duplicate_name", "duplicate_identity")
        return None if away and second else found

    return refuse


def _plant_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _waits_for_the_lost(placement.place)
    for module in (placement, scheduler):
        monkeypatch.setattr(module, "place", place)


MUTANTS = (
    Mutant(
        "a gang is arranged around one that refused",
        everywhere(task_moved, _arranges_holes),
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
        seed=416,
    ),
    Mutant(
        "a task is begun on a lease that is over",
        _both(ALL_LEASED, everywhere(agent_react, _begins_late)),
        ("I3", "I4", "I5"),
        seed=112,
    ),
    Mutant(
        "a clone takes the name of an agent that is cut off",
        everywhere(refuse, _only_connected),
        ("I3", "I4", "I5"),
        seed=9,
    ),
    Mutant(
        "a Hello that arrives after a newer one counts",
        everywhere(is_outdated, lambda _: lambda *_: False),
        ("I3",),
        seed=1875,
    ),
    Mutant("a job waits for a node that is gone", _plant_waiting, ("queue", "I10"), seed=12),
)
