"""Preference for gangs of nodes with identical RDMA hardware.

The choice uses each node's last report. The gang's fabric plan, from fresh probes, decides whether
it uses RDMA.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.spec.checks.rdma import named_plugin, rdma_off
from muster.spec.model import JobSpec, Rdma, env_on_node
from orchestrator.core.model.node import THERE
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.reasons import Rejection
from orchestrator.core.scheduling.topology import groups as near_groups


def without_rdma(spec: JobSpec, node: Node) -> Rejection | None:
    """Return why a node without RDMA hardware cannot serve a job; None if it can."""
    rdma = node.inventory.rdma
    if rdma is None or rdma.ports or rdma.expected or not _needs(spec):
        return None
    return Rejection("rdma", f"{rdma.why} (rdma: required)")


def rdma_groups(spec: JobSpec, free: Sequence[Node], others: Sequence[Node]) -> list[list[Node]]:
    """Groups of free nodes to try for a gang: those of one RDMA kind, then all nodes.

    `others` are the nodes that fit. If a gang that requires RDMA could be formed later of one kind
    of those that may become available, mixed nodes are not offered now.
    """
    if not _uses_rdma(spec):
        return [list(free)]
    kinds: dict[str, list[Node]] = {}
    for node in free:
        kinds.setdefault(kind_of(node), []).append(node)
    if len(kinds) == 1:
        return [list(free)]
    required = _needs(spec)
    groups = [
        (node_gpus(nodes), not kind, at, nodes)
        for at, (kind, nodes) in enumerate(kinds.items())
        if len(nodes) >= spec.nodes and (kind or not required)
    ]
    found = [nodes for _, _, _, nodes in sorted(groups, key=lambda it: it[:3])]
    if required:
        later = [node for node in others if node.link in THERE and node.in_service]
        if any(_enough_of_one_kind(spec, near) for near in near_groups(spec, later)):
            return found
    return [*found, list(free)]


def kind_of(node: Node) -> str:
    """The RDMA kind of a node; empty if no port is usable or nothing is known."""
    rdma = node.inventory.rdma
    return rdma.kind if rdma is not None and rdma.ports else ""


def node_gpus(nodes: Sequence[Node]) -> int:
    """GPUs of the first node; groups of smaller nodes are tried first."""
    return nodes[0].inventory.gpus


def _enough_of_one_kind(spec: JobSpec, nodes: Sequence[Node]) -> bool:
    """True if enough of the nodes are of one RDMA kind."""
    counted: dict[str, int] = {}
    for node in nodes:
        kind = kind_of(node)
        if kind:
            counted[kind] = counted.get(kind, 0) + 1
    return max(counted.values(), default=0) >= spec.nodes


def _needs(spec: JobSpec) -> bool:
    """True if the job requires NCCL's own RDMA; Muster cannot check a plugin's."""
    return spec.rdma is Rdma.REQUIRED and _uses_rdma(spec)


def _uses_rdma(spec: JobSpec) -> bool:
    if spec.rdma is Rdma.OFF or (spec.nodes < 2 and not spec.elastic):
        return False
    own = [env_on_node(spec, rank) for rank in (0, 1)]
    return not any(rdma_off(env) for env in own) and not all(map(named_plugin, own))
