"""Planted bugs of the network of a gang: none in common, or not the one that is there now."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from agent.core import inputs as agent_inputs
from agent.core.state import State as AgentState
from muster.protocol.link.control_channel import Heartbeat, NodeChanges
from muster.protocol.observations.interfaces import Endpoint
from orchestrator.core.facts.inputs import Input, ReportReceived
from orchestrator.core.model.state import Node, State
from orchestrator.core.scheduling import rendezvous
from orchestrator.core.scheduling.network import SharedNetwork
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put
from tests.simulation.mutants.planting import AGENT, COORDINATOR


def _each_its_own(nodes: Sequence[Node], _: Sequence[str]) -> SharedNetwork:
    interfaces = [node.inventory.interfaces[-1] for node in nodes]
    addresses = [interface.addresses[0].partition("/")[0] for interface in interfaces]
    return SharedNetwork(
        tuple(Endpoint(node.name, address) for node, address in zip(nodes, addresses, strict=True)),
        "",
    )


def _unheard(_: State, received: Input) -> Input:
    report = received.report if isinstance(received, ReportReceived) else None
    if isinstance(report, Heartbeat):
        beat = structs.replace(report, changes=structs.replace(report.changes, interfaces=None))
        return structs.replace(received, report=beat)
    return received


def _unseen(_: AgentState, received: agent_inputs.Input) -> agent_inputs.Input:
    match received:
        case agent_inputs.NodeObserved():
            return agent_inputs.NodeObserved(NodeChanges())
        case agent_inputs.TaskPlaced():
            return structs.replace(received, interfaces=None)
        case _:
            return received


MUTANTS = (
    Mutant(
        "each node of a gang has its own network",
        _put(rendezvous, "choose", _each_its_own),
        ("network",),
        seed=52,
    ),
    Mutant(
        "the coordinator does not hear that a network has changed",
        COORDINATOR.inputs(_unheard),
        ("network", "I10"),
        seed=4,
    ),
    Mutant(
        "an agent keeps to itself that its network has changed",
        AGENT.inputs(_unseen),
        ("network", "I10"),
        seed=1,
    ),
)
