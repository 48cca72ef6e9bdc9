"""Groups of nodes that are near each other, for `placement.spread`.

Nodes are near if a label has the same value, for example the switch to which they connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.spec.model import JobSpec
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.gpus import one_per_machine
from orchestrator.core.scheduling.network import reachable_gang


def groups(spec: JobSpec, nodes: Iterable[Node]) -> list[list[Node]]:
    """Split the nodes into groups of which a gang of this job may be formed; keeps their order."""
    label = spec.placement.shared_label
    if label is None:
        return [list(nodes)]
    found: dict[str, list[Node]] = {}
    for node in nodes:
        value = node.inventory.labels.get(label)
        if value is not None:
            found.setdefault(value, []).append(node)
    return list(found.values())


def enough(
    spec: JobSpec, nodes: Sequence[Node], networks: tuple[str, ...], *, share_network: bool = True
) -> bool:
    """True if these nodes could hold a whole gang if they were free.

    With `share_network`, they must also share a network.
    """
    return any(
        len(one_per_machine(group)) >= spec.nodes
        and (not share_network or reachable_gang(group, spec.nodes, networks) is not None)
        for group in groups(spec, nodes)
    )


def largest(spec: JobSpec, nodes: Sequence[Node]) -> list[Node]:
    """The largest group of nodes of which a gang may be formed."""
    return max(groups(spec, nodes), key=len, default=[])


def same(spec: JobSpec, node: Node, other: Node) -> bool:
    """True if both nodes may be in one gang."""
    label = spec.placement.shared_label
    if label is None:
        return True
    value = node.inventory.labels.get(label)
    return value is not None and value == other.inventory.labels.get(label)


def value_of(spec: JobSpec, node: Node) -> str:
    """The shared label and its value on the node, as text."""
    label = spec.placement.shared_label or ""
    return f"{label} {node.inventory.labels.get(label, '')}"
