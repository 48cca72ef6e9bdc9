"""Planted bugs of the network of a gang: none in common, or not the one that is there now."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core import decide as agent_decide
from agent.core.decision import Decision
from muster.protocol.observations.interfaces import Endpoint
from orchestrator.core.model.state import Node
from orchestrator.core.nodes import observations
from orchestrator.core.scheduling import rendezvous
from orchestrator.core.scheduling.network import SharedNetwork
from tests.simulation.mutants import Mutant
from tests.simulation.mutants.books import _put


def _each_its_own(nodes: Sequence[Node], _: Sequence[str]) -> SharedNetwork:
    interfaces = [node.inventory.interfaces[-1] for node in nodes]
    addresses = [interface.addresses[0].partition("/")[0] for interface in interfaces]
    return SharedNetwork(
        tuple(Endpoint(node.name, address) for node, address in zip(nodes, addresses, strict=True)),
        "",
    )


MUTANTS = (
    Mutant(
        "each node of a gang has its own network",
        _put(rendezvous, "choose", _each_its_own),
        ("network",),
        seed=52,
    ),
    Mutant(
        "the coordinator does not hear that a network has changed",
        _put(observations, "_inventory_facts", lambda *_: []),
        ("network", "I10"),
        seed=4,
    ),
    Mutant(
        "an agent keeps to itself that its network has changed",
        _put(agent_decide, "_node_observed", lambda *_: Decision()),
        ("network", "I10"),
        seed=1,
    ),
)
