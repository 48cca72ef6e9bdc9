"""Rails: which port of each node goes with which of the others, and where they differ.

A rail is a place among the ports that a node has for jobs, be they in order or not: a port that is
down keeps its place. Machines of one layout are matched by their slots, so that a port that is not
there does not shift the others; those with as many places by these.
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
from muster.fabric.nccl import Version
from muster.fabric.order import function_order, natural
from muster.fabric.types import ETHERNET, INFINIBAND
from muster.protocol.fabric import FabricPort, MissingPort, NodeFabric, PortGids
from orchestrator.core.fabric_plan import Rail

_UNEVEN: Final = "the GPUs of its tasks are near different ports of their nodes"
_VOWELS: Final = frozenset("AEFHILMNORSX8")
"""Of names that are spelt out: an MT4129, a BCM57608."""
_WORDS: Final[dict[Family, str]] = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}


class Member(msgspec.Struct, frozen=True):
    """A node of a gang: its fresh probe, those of its ports that are for the job, how many GPUs the
    job has there, and the NCCL that it runs."""

    node: str
    fabric: NodeFabric
    ports: tuple[FabricPort, ...]
    gpus: int = 0
    nccl: Version | None = None


class Difference(msgspec.Struct, frozen=True):
    """A sentence that names the node, the port where it is about one, and what differs."""

    node: str
    text: str
    port: str = ""


@dataclass(slots=True)
class Rails:
    """`kinds` has the kind of every member, in their order: those of one kind differ in their names
    and addresses only. `ports` has for each rail the port of each kind, None where it has none.
    `agreed` are the places of the rails that all share, of `count` that some node of the gang has.
    `fewer`: rails that only a node with fewer GPUs lacks. `dark`: why no node has one of them."""

    kinds: list[int]
    common: list[Rail]
    ports: list[list[FabricPort | None]]
    agreed: list[int]
    family: Family
    differences: list[Difference] = field(default_factory=list)
    fewer: bool = False
    count: int = 0
    dark: str = ""
    uneven: bool = False
    paired: bool = False
    notes: list[str] = field(default_factory=list)


class Place(msgspec.Struct, frozen=True):
    """Where a node has a port for jobs: its slot (the PCI address, "" if unknown, and the port's
    number), the port where the job can use it, and what is wrong where nobody can."""

    slot: tuple[str, int]
    name: str
    port: FabricPort | None
    missing: MissingPort | None = None


@dataclass(slots=True)
class _Kind:
    """Nodes that are alike: the first of them, how many there are, and the members of the gang."""

    first: Member
    count: int = 0
    members: list[Member] = field(default_factory=list)


Layout = Sequence[Place]


def rails_of(members: Sequence[Member], witnesses: Sequence[Member] = ()) -> Rails:
    """Match the ports of `members`, each of which has at least one. `witnesses` are nodes that the
    job has met before: between two that differ they say which one is unusual."""
    found = _matched(members, witnesses)
    if not found.uneven:
        return found
    # Tasks with other GPUs of their nodes: nothing is wrong with these.
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


def _alone(member: Member) -> Member:
    """With the ports near its GPUs, as if there were no others."""
    return replace(member, fabric=replace(member.fabric, ports=member.ports, missing=()))


def _in_one_subnet(members: Sequence[Member]) -> bool:
    """Whether it is known that every port reaches every other: InfiniBand's do, in one subnet."""
    ports = [port for member in members for port in member.ports]
    subnets = {(port.sm_lid, port.prefix) for port in ports}
    infiniband = all(
        port.link_layer == INFINIBAND and port.sm_lid and port.prefix for port in ports
    )
    return infiniband and len(subnets) == 1


def _matched(members: Sequence[Member], witnesses: Sequence[Member]) -> Rails:
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
    # What nobody has is not cabled, or not for jobs: in that they do not differ.
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


def _signature(member: Member) -> object:
    """Of two nodes for which it is equal the same is decided."""
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


def is_part(member: Member) -> bool:
    """Whether the job has some of the node's GPUs, to which some of its ports are near."""
    return len(member.ports) < len(member.fabric.ports)


def _is_far(place: Place | None) -> bool:
    """Whether a part of a node lacks this one, though nothing is wrong with it."""
    return place is None or (place.port is None and place.missing is None)


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


def unlike(port: FabricPort, other: FabricPort | Rail) -> str | None:
    """The first thing that is known of both and differs, by its field; None if nothing is."""
    for name in _FIELDS:
        if name == "mtu" and port.link_layer != ETHERNET:
            continue
        mine, its = getattr(port, name), getattr(other, name)
        if mine not in (None, "") and its not in (None, "") and mine != its:
            return name
    return None


def gids(port: FabricPort, family: Family) -> PortGids | None:
    """The addresses of one family."""
    return port.fourth if family == "AF_INET" else port.sixth


def lacks(port: FabricPort, family: Family) -> bool:
    """Whether it is known that NCCL would find no address of the family."""
    return port.link_layer == ETHERNET and port.table and gids(port, family) is None


def no_address(port: FabricPort, family: Family) -> str:
    """As in `mlx5_3:1 (eth3) has no IPv4 address that NCCL would take`."""
    where = f" ({port.netdev})" if port.netdev else ""
    return f"{port.key}{where} has no {_WORDS[family]} address that NCCL would take"


def told(name: str, value: object) -> str:
    """A value of a port, in words that follow its name."""
    match name:
        case "link_layer":
            return f"is {value}"
        case "model":
            return f"is {'an' if f'{value}'[:1] in _VOWELS else 'a'} {value}"
        case "rate_gbps":
            return f"runs at {value:g} Gb/s"
        case "sm_lid":
            return f"has the subnet manager at LID {value}"
        case "prefix":
            return f"is in the subnet {value}"
        case _:
            return f"has MTU {value}"


_FIELDS: Final = ("link_layer", "model", "rate_gbps", "sm_lid", "prefix", "mtu")


def _reference(kinds: Sequence[_Kind], laid: Sequence[Layout]) -> Layout:
    """The layout that most have; of several, the one with most places, then with most ports."""
    slots = [tuple(place.slot for place in mine) for mine in laid]
    counted: Counter[object] = Counter()
    for its, kind in zip(slots, kinds, strict=True):
        counted[its] += kind.count
    best = max(
        range(len(kinds)),
        key=lambda at: (counted[slots[at]], len(slots[at]), len(kinds[at].first.ports)),
    )
    return laid[best]


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


def _family(kinds: Sequence[_Kind]) -> Family:
    """That of which fewer ports have no address; IPv4 before IPv6."""
    fourth = sixth = 0
    for kind in kinds:
        fourth += kind.count * sum(lacks(port, "AF_INET") for port in kind.first.ports)
        sixth += kind.count * sum(lacks(port, "AF_INET6") for port in kind.first.ports)
    return "AF_INET6" if sixth < fourth else "AF_INET"


def _compared(
    rail: int, kinds: Sequence[_Kind], ports: Sequence[FabricPort | None], family: Family
) -> tuple[Rail, list[Difference]]:
    """What the ports of a rail have in common, and who of the gang differs."""
    here = [(at, port) for at, port in enumerate(ports) if port is not None]
    common: dict[str, object] = {}
    differing: dict[int, list[Difference]] = {}
    for name in _FIELDS:
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
        if at not in differing and lacks(port, family):
            text = f"{no_address(port, family)}, as the others have"
            differing[at] = [
                Difference(member.node, f"{member.node}: {text}", port.key)
                for member in kinds[at].members
            ]
    slots = {port.pci for _, port in here}
    if len(slots) == 1:
        common["pci"] = slots.pop()
    found = [it for some in differing.values() for it in some]
    return Rail(**common), found  # type: ignore[arg-type]


def _usual(name: str, counted: Counter[object], first: object) -> object:
    """What most have. Of equals the faster: who is slower has the fault; else the launcher's."""
    most = max(counted.values())
    usual = [value for value, count in counted.items() if count == most]
    if len(usual) == 1:
        return usual[0]
    if name == "rate_gbps":
        return max(value for value in usual if isinstance(value, float | int))
    return first if first in usual else usual[0]


def _difference(
    rail: int,
    member: Member,
    at: int,
    kinds: Sequence[_Kind],
    ports: Sequence[FabricPort | None],
    name: str,
    right: object,
) -> Difference:
    port = ports[at]
    assert port is not None
    mine = f"{port.key} {told(name, getattr(port, name))}"
    agreeing = [
        (kind.members, its)
        for kind, its in zip(kinds, ports, strict=True)
        if its is not None and getattr(its, name) == right
    ]
    count = sum(len(nodes) for nodes, _ in agreeing)
    verb = told(name, right)
    if count == 1:
        other, its = next((nodes[0], its) for nodes, its in agreeing if nodes)
        theirs = f"{its.key} of {other.node} {verb}"
    else:
        whose = f"{count} others" if count else "nodes tried before"
        for one, many in (("is ", "are "), ("runs ", "run "), ("has ", "have ")):
            verb = f"{many}{verb.removeprefix(one)}" if verb.startswith(one) else verb
        theirs = f"those of {whose} {verb}"
    where = "" if len(member.ports) == 1 else f" (rail {rail})"
    return Difference(member.node, f"{member.node}: {mine}{where}, {theirs}", port.key)


def _lacking(
    member: Member,
    members: Sequence[Member],
    layout: Layout,
    mine: Sequence[Place | None],
    lacking: Sequence[int],
    gpus: int,
) -> Difference | None:
    """Why a node has no port for these rails; None where it is a smaller one, and in order."""
    places = [mine[rail] for rail in lacking]
    missing = [it.missing for it in places if it is not None and it.missing is not None]
    have, of = len(member.ports), len(layout)
    if missing:
        first = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        text = f"{member.node}: {first.key} cannot be used: {first.why}{more}; {_has(have, of)}"
        return Difference(member.node, text, first.key)
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
    return Difference(member.node, text, pci)


def _has(have: int, of: int) -> str:
    return f"it has {have} of {of} ports"


def _others(member: Member, members: Sequence[Member], of: int) -> str:
    having = [other.node for other in members if other is not member and len(other.ports) == of]
    return f"{having[0]} has {of}" if len(having) == 1 else f"others have {of}"


def first_by_node(differences: Sequence[Difference]) -> dict[str, Difference]:
    """Of each node the first thing that differs."""
    found: dict[str, Difference] = {}
    for difference in differences:
        found.setdefault(difference.node, difference)
    return found
