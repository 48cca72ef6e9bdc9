"""Layouts: the places of a node's job ports, and their alignment between nodes.

Machines of one layout are matched by slot, so that a missing port does not shift the others. Other
machines with the same number of places are matched by order.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.fabric.natural_sort import function_order, natural
from muster.fabric.nccl_version import Version
from muster.protocol.observations.fabric import FabricPort, MissingPort, NodeFabric
from orchestrator.core.fabric.port_diff import unlike


class FabricMember(msgspec.Struct, frozen=True):
    """A node of a gang: its fresh probe, its ports near the job's GPUs, the job's GPU count and
    NCCL.
    """

    node: str
    fabric: NodeFabric
    ports: tuple[FabricPort, ...]
    gpus: int = 0
    nccl: Version | None = None


class PortPlace(msgspec.Struct, frozen=True):
    """A node's place for a job port.

    `slot`: the PCI address (empty if unknown) and the port number. `port` is set if the job can use
    it. `missing` says what is wrong if no job can.
    """

    slot: tuple[str, int]
    name: str
    port: FabricPort | None
    missing: MissingPort | None = None


Layout = Sequence[PortPlace]


def is_part(member: FabricMember) -> bool:
    """True if the job has only some of the node's GPUs, and so only the ports near these."""
    return len(member.ports) < len(member.fabric.ports)


def places_of(member: FabricMember) -> Layout:
    """All places of a node's job ports, by PCI address; by name if an address is unknown."""
    part = is_part(member)
    found = [
        PortPlace(
            (port.pci, port.port), port.name, port if not part or port in member.ports else None
        )
        for port in member.fabric.ports
    ]
    for missing in member.fabric.missing:
        name, _, number = missing.key.rpartition(":")
        slot = missing.pci, int(number[:9]) if number.isdecimal() else 0
        found.append(PortPlace(slot, name, None, missing))
    known = all(place.slot[0] for place in found)
    return sorted(
        found,
        key=lambda it: (
            function_order(it.slot[0]) if known else (),
            natural(it.name),
            it.slot[1],
        ),
    )


def align(mine: Layout, layout: Layout) -> list[PortPlace | None]:
    """The node's place for each place of `layout`; None if the node has none."""
    own = {place.slot: place for place in mine}
    slots = {place.slot for place in layout}
    known = all(pci for pci, _ in own.keys() | slots)
    if known and (slots <= own.keys() or own.keys() <= slots):
        return [own.get(place.slot) for place in layout]
    if len(mine) == len(layout):
        return list(mine)
    if len(mine) > len(layout):
        return [mine[at] for at in _like(layout, mine)]
    made: list[PortPlace | None] = [None] * len(layout)
    for place, at in zip(mine, _like(mine, layout), strict=True):
        made[at] = place
    return made


def _like(few: Layout, many: Layout) -> list[int]:
    """Places in `many` that match those of `few` one by one, in order; otherwise the first ones."""
    found: list[int] = []
    at = 0
    for place in few:
        while at < len(many) and _are_unlike(place.port, many[at].port):
            at += 1
        if at == len(many):
            return list(range(len(few)))
        found.append(at)
        at += 1
    return found


def _are_unlike(port: FabricPort | None, other: FabricPort | None) -> bool:
    return port is not None and other is not None and unlike(port, other) is not None
