"""Preference for nodes with one GPU per rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from muster.protocol.ids import NodeName
from muster.spec.model import JobSpec, nproc_wanted
from orchestrator.core.model.state import Node


def by_gpu_fit(spec: JobSpec, node_rank: int, nodes: list[Node]) -> list[Node]:
    """The nodes in the same order, but those with a GPU for each of their ranks first."""
    return sorted(nodes, key=lambda node: is_short(spec, node_rank, node))


def lacks_gpus(spec: JobSpec, gang: tuple[NodeName, ...], nodes: Mapping[NodeName, Node]) -> bool:
    return any(is_short(spec, rank, nodes[name]) for rank, name in enumerate(gang))


def is_short(spec: JobSpec, node_rank: int, node: Node) -> bool:
    """True if the node would get more ranks than GPUs, if the job does not request a GPU count."""
    wanted = nproc_wanted(spec, node_rank, node.name) or 0
    return spec.resources.gpu is None and node.inventory.gpus < wanted
