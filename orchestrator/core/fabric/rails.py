"""Rails: the ports of a gang's nodes that belong together, and their differences.

A rail is a place among a node's job ports (orchestrator/core/fabric/port_slots.py), usable or not:
a port that is down keeps its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.fabric.gids import Family
from muster.fabric.model import ETHERNET, INFINIBAND
from muster.protocol.observations.fabric import FabricPort
from orchestrator.core.fabric.port_diff import COMPARED, described, lacks_gid, no_address
from orchestrator.core.fabric.port_slots import (
    FabricMember,
    Layout,
    PortPlace,
    align,
    is_part,
    places_of,
)
from orchestrator.core.model.fabric_plan import Rail

_UNEVEN: Final = "the GPUs of its tasks are near different ports of their nodes"


class PortDifference(msgspec.Struct, frozen=True):
    """A sentence that names the node and the difference; `port` is set if it is about one port."""

    node: str
    text: str
    port: str = ""


@dataclass(slots=True)
class Rails:
    """The rails of a gang.

    `kinds` has the kind of every member, in their order: nodes of one kind differ only in names and
    addresses. `ports` has for each rail the port of each kind, or None. `agreed` are the rails that
    all nodes share; `count` is the number that some node has. `fewer`: some rails are lacking only
    on nodes with fewer GPUs. `dark`: why no node can use one of them.
    """

    kinds: list[int]
    common: list[Rail]
    ports: list[list[FabricPort | None]]
    agreed: list[int]
    family: Family
    differences: list[PortDifference] = field(default_factory=list)
    fewer: bool = False
    count: int = 0
    dark: str = ""
    uneven: bool = False
    paired: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Kind:
    """Nodes that are alike: the first of them, their number, and the members of the gang."""

    first: FabricMember
    count: int = 0
    members: list[FabricMember] = field(default_factory=list)


def rails_of(members: Sequence[FabricMember], witnesses: Sequence[FabricMember] = ()) -> Rails:
    """Match the ports of `members`, each of which has at least one.

    `witnesses` are nodes of the job's earlier attempts: if two members differ, they show which one
    is unusual.
    """
    found = _matched(members, witnesses)
    if not found.uneven:
        return found
    # The tasks have different GPUs of their nodes, which is not a fault.
    alone = [_alone(member) for member in members]
    if _in_one_subnet(alone):
        paired = _matched(alone, ())
        if not paired.differences and len(paired.agreed) == len(paired.common):
            paired.paired = True
            paired.notes.append(f"{_UNEVEN}: these are paired in their order")
            return paired
    if found.agreed:
        found.notes.append(f"{_UNEVEN}: those are used that are near on all nodes")
        return found
    found = _matched([replace(it, ports=it.fabric.ports) for it in members], witnesses)
    found.notes.append(f"{_UNEVEN}: all ports are used")
    return found


def _alone(member: FabricMember) -> FabricMember:
    """The member reduced to the ports near its GPUs."""
    return replace(member, fabric=replace(member.fabric, ports=member.ports, missing=()))


def _in_one_subnet(members: Sequence[FabricMember]) -> bool:
    """True if all ports certainly reach each other: those of one InfiniBand subnet do."""
    ports = [port for member in members for port in member.ports]
    subnets = {(port.sm_lid, port.prefix) for port in ports}
    infiniband = all(
        port.link_layer == INFINIBAND and port.sm_lid and port.prefix for port in ports
    )
    return infiniband and len(subnets) == 1


def _matched(members: Sequence[FabricMember], witnesses: Sequence[FabricMember]) -> Rails:
    places: dict[object, int] = {}
    kinds: list[_Kind] = []
    of_members = []
    for at, member in enumerate((*members, *witnesses)):
        place = places.setdefault(_signature(member), len(kinds))
        if place == len(kinds):
            kinds.append(_Kind(member))
        kinds[place].count += 1
        if at < len(members):
            kinds[place].members.append(member)
            of_members.append(place)
    laid = [places_of(kind.first) for kind in kinds]
    layout = _reference(kinds, laid)
    aligned = [align(mine, layout) for mine in laid]
    family = _family(kinds)
    found = Rails(of_members, [], [], [], family)
    bad: set[int] = set()
    for rail in range(len(layout)):
        ports = [None if (it := mine[rail]) is None else it.port for mine in aligned]
        common, differing = _compared(rail, kinds, ports, family)
        found.common.append(common)
        found.ports.append(ports)
        found.differences += differing
        if differing:
            bad.add(rail)
    ours = [at for at, kind in enumerate(kinds) if kind.members]
    # A port that no node has is not cabled or not for jobs, so the nodes do not differ in it.
    dark = [rail for rail, ports in enumerate(found.ports) if not any(ports[at] for at in ours)]
    bad |= set(dark)
    broken = [
        f"no node can use rail {rail} ({it.missing.key} of {kinds[at].members[0].node}: "
        f"{it.missing.why})"
        for rail in dark
        for at in ours[:1]
        if not is_part(kinds[at].first)
        and (it := aligned[at][rail]) is not None
        and it.missing is not None
    ]
    found.dark = broken[0] if broken else ""
    found.count = len(layout) - len(dark) + len(broken)
    found.uneven = any(
        is_part(kinds[at].first) and _is_far(aligned[at][rail])
        for at in ours
        for rail in range(len(layout))
        if rail not in dark
    )
    gpus = max((member.gpus for member in members), default=0)
    for at in ours:
        lacking = [rail for rail, ports in enumerate(found.ports) if ports[at] is None]
        bad |= set(lacking)
        lacking = [rail for rail in lacking if rail not in dark]
        if lacking and not (found.uneven and is_part(kinds[at].first)):
            texts = [
                _lacking(it, members, layout, aligned[at], lacking, gpus)
                for it in kinds[at].members
            ]
            found.differences += [it for it in texts if it is not None]
            found.fewer |= None in texts
    found.agreed = [rail for rail in range(len(layout)) if rail not in bad]
    return found


_PORT: Final = attrgetter(
    "name",
    "port",
    "pci",
    "link_layer",
    "model",
    "rate_gbps",
    "sm_lid",
    "prefix",
    "netdev",
    "mtu",
    "table",
    "sparse",
    "fourth",
    "sixth",
    "near",
)


def _signature(member: FabricMember) -> object:
    """A key for nodes that get the same decision."""
    fabric = member.fabric
    return (
        tuple(map(_PORT, member.ports)),
        tuple((port.key, port.pci) for port in fabric.ports if port not in member.ports),
        fabric.missing,
        fabric.group,
        fabric.range,
        fabric.ucx,
        tuple(fabric.settings.items()),
        tuple(fabric.nccl_conf.items()),
        member.gpus,
        member.nccl,
    )


def _is_far(place: PortPlace | None) -> bool:
    """True if a node's part lacks this place although the place has no fault."""
    return place is None or (place.port is None and place.missing is None)


def _reference(kinds: Sequence[_Kind], laid: Sequence[Layout]) -> Layout:
    """The most frequent layout; of equals, the one with most places, then with most ports."""
    slots = [tuple(place.slot for place in mine) for mine in laid]
    counted: Counter[object] = Counter()
    for its, kind in zip(slots, kinds, strict=True):
        counted[its] += kind.count
    best = max(
        range(len(kinds)),
        key=lambda at: (counted[slots[at]], len(slots[at]), len(kinds[at].first.ports)),
    )
    return laid[best]


def _family(kinds: Sequence[_Kind]) -> Family:
    """The address family that fewer ports lack; IPv4 if equal."""
    fourth = sixth = 0
    for kind in kinds:
        fourth += kind.count * sum(lacks_gid(port, "AF_INET") for port in kind.first.ports)
        sixth += kind.count * sum(lacks_gid(port, "AF_INET6") for port in kind.first.ports)
    return "AF_INET6" if sixth < fourth else "AF_INET"


def _compared(
    rail: int, kinds: Sequence[_Kind], ports: Sequence[FabricPort | None], family: Family
) -> tuple[Rail, list[PortDifference]]:
    """The common values of a rail's ports, and the members that differ."""
    here = [(at, port) for at, port in enumerate(ports) if port is not None]
    common: dict[str, object] = {}
    differing: dict[int, list[PortDifference]] = {}
    for name in COMPARED:
        known = [
            (at, value)
            for at, port in here
            if (value := getattr(port, name)) not in (None, "")
            and (name != "mtu" or port.link_layer == ETHERNET)
        ]
        counted: Counter[object] = Counter()
        for at, value in known:
            counted[value] += kinds[at].count
        if not counted:
            continue
        right = _usual(name, counted, known[0][1])
        common[name] = right
        if len(counted) == 1:
            continue
        for at, value in known:
            if value != right and at not in differing:
                differing[at] = [
                    _difference(rail, member, at, kinds, ports, name, right)
                    for member in kinds[at].members
                ]
    for at, port in here:
        if at not in differing and lacks_gid(port, family):
            text = f"{no_address(port, family)}, as the others have"
            differing[at] = [
                PortDifference(member.node, f"{member.node}: {text}", port.key)
                for member in kinds[at].members
            ]
    slots = {port.pci for _, port in here}
    if len(slots) == 1:
        common["pci"] = slots.pop()
    found = [it for some in differing.values() for it in some]
    return Rail(**common), found  # type: ignore[arg-type]


def _usual(name: str, counted: Counter[object], first: object) -> object:
    """The most frequent value.

    Of equally frequent rates the faster, because the slower port is at fault. Of other values the
    launcher's.
    """
    most = max(counted.values())
    usual = [value for value, count in counted.items() if count == most]
    if len(usual) == 1:
        return usual[0]
    if name == "rate_gbps":
        return max(value for value in usual if isinstance(value, float | int))
    return first if first in usual else usual[0]


def _difference(
    rail: int,
    member: FabricMember,
    at: int,
    kinds: Sequence[_Kind],
    ports: Sequence[FabricPort | None],
    name: str,
    right: object,
) -> PortDifference:
    port = ports[at]
    assert port is not None
    mine = f"{port.key} {described(name, getattr(port, name))}"
    agreeing = [
        (kind.members, its)
        for kind, its in zip(kinds, ports, strict=True)
        if its is not None and getattr(its, name) == right
    ]
    count = sum(len(nodes) for nodes, _ in agreeing)
    verb = described(name, right)
    if count == 1:
        other, its = next((nodes[0], its) for nodes, its in agreeing if nodes)
        theirs = f"{its.key} of {other.node} {verb}"
    else:
        whose = f"{count} others" if count else "nodes tried before"
        for one, many in (("is ", "are "), ("runs ", "run "), ("has ", "have ")):
            verb = f"{many}{verb.removeprefix(one)}" if verb.startswith(one) else verb
        theirs = f"those of {whose} {verb}"
    where = "" if len(member.ports) == 1 else f" (rail {rail})"
    return PortDifference(member.node, f"{member.node}: {mine}{where}, {theirs}", port.key)


def _lacking(
    member: FabricMember,
    members: Sequence[FabricMember],
    layout: Layout,
    mine: Sequence[PortPlace | None],
    lacking: Sequence[int],
    gpus: int,
) -> PortDifference | None:
    """Return why a node has no port for these rails; None for a smaller node without a fault."""
    places = [mine[rail] for rail in lacking]
    missing = [it.missing for it in places if it is not None and it.missing is not None]
    have, of = len(member.ports), len(layout)
    if missing:
        first = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        text = f"{member.node}: {first.key} cannot be used: {first.why}{more}; {_has(have, of)}"
        return PortDifference(member.node, text, first.key)
    if member.gpus < gpus:
        return None
    rail = lacking[0]
    pci = layout[rail].slot[0]
    slot = f" at {pci}" if pci else ""
    group = member.fabric.group or "its HCAs"
    text = (
        f"{member.node} has {have} port{'s' if have != 1 else ''} of {group} and no port{slot} for "
        f"rail {rail}, {_others(member, members, of)}"
    )
    return PortDifference(member.node, text, pci)


def _has(have: int, of: int) -> str:
    return f"it has {have} of {of} ports"


def _others(member: FabricMember, members: Sequence[FabricMember], of: int) -> str:
    having = [other.node for other in members if other is not member and len(other.ports) == of]
    return f"{having[0]} has {of}" if len(having) == 1 else f"others have {of}"


def first_by_node(differences: Sequence[PortDifference]) -> dict[str, PortDifference]:
    """The first difference of each node."""
    found: dict[str, PortDifference] = {}
    for difference in differences:
        found.setdefault(difference.node, difference)
    return found
