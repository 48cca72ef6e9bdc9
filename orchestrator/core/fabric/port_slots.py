"""Layouts: where nodes have ports for jobs, and which place of one is which of another.

Machines of one layout are matched by their slots, so that a port that is not there does not shift
the others; those with as many places by these.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.fabric.natural_sort import function_order, natural
from muster.fabric.nccl_version import Version
from muster.protocol.fabric import FabricPort, MissingPort, NodeFabric
from orchestrator.core.fabric.port_diff import unlike


class Member(msgspec.Struct, frozen=True):
    """A node of a gang: its fresh probe, those of its ports that are for the job, how many GPUs the
    job has there, and the NCCL that it runs."""

    node: str
    fabric: NodeFabric
    ports: tuple[FabricPort, ...]
    gpus: int = 0
    nccl: Version | None = None


class Place(msgspec.Struct, frozen=True):
    """Where a node has a port for jobs: its slot (the PCI address, "" if unknown, and the port's
    number), the port where the job can use it, and what is wrong where nobody can."""

    slot: tuple[str, int]
    name: str
    port: FabricPort | None
    missing: MissingPort | None = None


Layout = Sequence[Place]


def is_part(member: Member) -> bool:
    """Whether the job has some of the node's GPUs, to which some of its ports are near."""
    return len(member.ports) < len(member.fabric.ports)


def places_of(member: Member) -> Layout:
    """All that a node has for jobs, in the order of PCI addresses; of names, if one has none."""
    part = is_part(member)
    found = [
        Place((port.pci, port.port), port.name, port if not part or port in member.ports else None)
        for port in member.fabric.ports
    ]
    for missing in member.fabric.missing:
        name, _, number = missing.key.rpartition(":")
        slot = missing.pci, int(number) if number.isdecimal() else 0
        found.append(Place(slot, name, None, missing))
    known = all(place.slot[0] for place in found)
    return sorted(
        found,
        key=lambda it: (
            function_order(it.slot[0]) if known else (),
            natural(it.name),
            it.slot[1],
        ),
    )


def align(mine: Layout, layout: Layout) -> list[Place | None]:
    """A node's place for each of a layout."""
    own = {place.slot: place for place in mine}
    slots = {place.slot for place in layout}
    known = all(pci for pci, _ in own.keys() | slots)
    if known and (slots <= own.keys() or own.keys() <= slots):
        return [own.get(place.slot) for place in layout]
    if len(mine) == len(layout):
        return list(mine)
    if len(mine) > len(layout):
        return [mine[at] for at in _like(layout, mine)]
    made: list[Place | None] = [None] * len(layout)
    for place, at in zip(mine, _like(mine, layout), strict=True):
        made[at] = place
    return made


def _like(few: Layout, many: Layout) -> list[int]:
    """Places in `many`, in order, that are like those of `few` one by one; else the first ones."""
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
