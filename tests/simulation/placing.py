"""Placement of a gang now, judged without the scheduler."""

from __future__ import annotations

from collections import Counter

from muster.protocol.ids import NodeName
from muster.spec.model import JobSpec
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Node, State


def fits(state: State, spec: JobSpec, avoid: frozenset[NodeName]) -> bool:
    """True if a whole gang could be."""
    if state.awaited - state.answered:
        return False
    able = [
        node
        for node in state.nodes.values()
        if node.inventory.pool == spec.pool and node.inventory.gpus >= (spec.resources.gpu or 0)
    ]
    there = (LinkState.CONNECTED, LinkState.SUSPECT)
    serving = [node for node in able if node.drain is None]
    liked = [node for node in serving if node.name not in avoid and node.link in there]
    if _in_one_network(liked) < spec.nodes:
        liked = serving
    free = [n for n in liked if _is_free(state, spec, n)]
    return _in_one_network(free) >= spec.nodes


def _is_free(state: State, spec: JobSpec, node: Node) -> bool:
    if node.link is not LinkState.CONNECTED or state.unknown.on(node.name):
        return False
    host = [n for n in state.nodes.values() if n.inventory.machine_id == node.inventory.machine_id]
    taken = {uuid for n in host for share in n.holders.values() for uuid in share.gpus}
    whole = [n for n in host if any(share.whole for share in n.holders.values())]
    sound = {gpu.uuid for gpu in node.inventory.devices if not gpu.fault}
    if not sound:
        return not node.holders
    if not spec.resources.gpu:
        return not node.holders and not whole and not taken & sound
    cpus = node.inventory.cpus - sum(share.cpus for share in node.holders.values())
    enough = not node.holders or spec.resources.cpu is None or cpus >= spec.resources.cpu
    return not whole and enough and len(sound - taken) >= spec.resources.gpu


def _in_one_network(nodes: list[Node]) -> int:
    """Return the size of the largest network; each node has one address that others can reach."""
    # Agents of one machine that see the same GPUs are one node of a gang, and each of them may be
    # in another network: where the machine is rewired, they notice one after the other.
    there = {
        (
            n.inventory.interfaces[-1].addresses[0].rpartition(".")[0],
            n.inventory.machine_id if n.inventory.devices else n.name,
        )
        for n in nodes
    }
    return max(Counter(subnet for subnet, _ in there).values(), default=0)
