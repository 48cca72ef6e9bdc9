"""Warnings about a node for its operator; none of them ends anything."""

from __future__ import annotations

from typing import Final

from muster.protocol.instant import Instant
from orchestrator.core.model.clocks import clock_warning
from orchestrator.core.model.state import Node
from orchestrator.core.nodes.hardware import hardware_warnings
from orchestrator.core.nodes.unkillable import survivor_problems

# A refused agent dials again twice a minute.
_CLAIM_SHOWN_S: Final = 90.0


def node_warnings(node: Node, now: Instant) -> tuple[str, ...]:
    """Return the current warnings about a node, as sentences."""
    found = (clock_warning(node), claim_warning(node, now), node.spared, *hardware_warnings(node))
    disks, ports = (disk.text for disk in node.disks), (port.text for port in node.ports)
    # A drained node has them in the reason.
    left = survivor_problems(node) if node.in_service else ()
    return tuple(filter(None, (*found, *left, *disks, *ports)))


def claim_warning(node: Node, now: Instant) -> str:
    """Return a warning if another agent of that name dialled lately, else ""."""
    if node.claimed is None or now.mono - node.claimed[1] >= _CLAIM_SHOWN_S:
        return ""
    peer, at = node.claimed
    return (
        f"another agent at {peer} also has the name {node.name}, and was refused "
        f"{max(now.mono - at, 0.0):.0f} s ago"
    )
