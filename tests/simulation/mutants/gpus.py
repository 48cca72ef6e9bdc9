"""Planted bugs of who has which GPU."""

from __future__ import annotations

from typing import Any

from agent.core.decide import decide as agent_decide
from agent.core.state import State as AgentState
from muster.protocol.observations.gpus import GpuDevice, usable
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Node, State
from orchestrator.core.scheduling import gpus, network, placement
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _both, _put, _unseen
from tests.simulation.mutants.planting import COORDINATOR, everywhere


def _all_of_them(_: State, node: Node) -> tuple[GpuDevice, ...]:
    return usable(node.inventory.devices)


def _frees_the_node(state: State, fact: f.Fact) -> None:
    if isinstance(fact, f.AttemptClosed):
        for task in state.jobs[fact.job].attempt(fact.attempt).tasks:
            state.nodes[task.node].holders.clear()


def _first_come(real: Any) -> Any:
    """Make an agent that accepts every claim."""

    def decide(state: AgentState, received: Any, *more: Any) -> Any:
        held = [(task, task.gpus) for task in state.tasks.values()]
        for task, _ in held:
            task.gpus = ()
        decision = real(state, received, *more)
        for task, uuids in held:
            task.gpus = uuids
        return decision

    return decide


def _of_this_agent_alone(_: State, node: Node) -> tuple[GpuDevice, ...]:
    taken = {uuid for share in node.holders.values() for uuid in share.gpus}
    whole = any(share.whole for share in node.holders.values())
    there = () if whole else usable(node.inventory.devices)
    return tuple(gpu for gpu in there if gpu.uuid not in taken and not gpu.busy)


MUTANTS = (
    Mutant(
        "a GPU that somebody has counts as free",
        _put(gpus, "free_gpus", _all_of_them),
        ("books",),
        seed=303,
    ),
    Mutant(
        "a GPU that somebody has counts as free, and nobody looks",
        _both(
            _unseen(_put(gpus, "free_gpus", _all_of_them)),
            everywhere(agent_decide, _first_come),
        ),
        ("gpus",),
        seed=303,
    ),
    Mutant(
        "a GPU is given out by each agent of its machine",
        _put(gpus, "free_gpus", _of_this_agent_alone),
        ("books", "gpus"),
        seed=303,
    ),
    Mutant(
        "a gang has the same GPU through two agents",
        _both(_put(placement, "one_per_machine", list), _put(network, "one_per_machine", list)),
        ("books", "gpus"),
        seed=303,
    ),
    Mutant(
        "all of a node is free when one of its jobs ends",
        COORDINATOR.state(_frees_the_node),
        ("books",),
        seed=304,
    ),
    Mutant(
        "a job that shares its nodes has as many CPUs as it likes",
        _put(placement, "free_cpus", lambda node: node.inventory.cpus),
        ("books", "queue"),
        seed=307,
    ),
)
