"""Which nodes may be of one gang, where a job wants them near each other (`placement.spread`):
those of which a label, such as the switch that they hang on, says the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.spec.model import JobSpec
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.gpus import one_a_machine
from orchestrator.core.scheduling.network import reachable_gang


def groups(spec: JobSpec, nodes: Iterable[Node]) -> list[list[Node]]:
    """The nodes, in the order given, parted into those that a gang of this job may be of."""
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
    spec: JobSpec, nodes: Sequence[Node], networks: tuple[str, ...], *, meeting: bool = True
) -> bool:
    """Whether a whole gang could be had of these nodes, were they free; `meeting`: one that shares
    a network."""
    return any(
        len(one_a_machine(group)) >= spec.nodes
        and (not meeting or reachable_gang(group, spec.nodes, networks) is not None)
        for group in groups(spec, nodes)
    )


def largest(spec: JobSpec, nodes: Sequence[Node]) -> list[Node]:
    """The most of the nodes that may be of one gang."""
    return max(groups(spec, nodes), key=len, default=[])


def same(spec: JobSpec, node: Node, other: Node) -> bool:
    """Whether both may be of one gang."""
    label = spec.placement.shared_label
    if label is None:
        return True
    value = node.inventory.labels.get(label)
    return value is not None and value == other.inventory.labels.get(label)


def value_of(spec: JobSpec, node: Node) -> str:
    """What its label says, in words."""
    label = spec.placement.shared_label or ""
    return f"{label} {node.inventory.labels.get(label, '')}"
