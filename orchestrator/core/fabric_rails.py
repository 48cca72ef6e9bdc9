"""Rails: which port of each node goes with which of the others, and where they differ.

A rail is a place in PCI order. Machines of one layout are matched by their slots, so that a port
that one of them misses does not shift the others; machines that differ by their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from muster.fabric.gids import Family
from muster.fabric.nccl import Version
from muster.fabric.order import function_order
from muster.fabric.types import ETHERNET
from muster.protocol.fabric import FabricPort, MissingPort, NodeFabric, PortGids
from orchestrator.core.fabric_plan import Rail

_WORDS: Final[dict[Family, str]] = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a gang: its fresh probe, those of its ports that are for the job, how many GPUs the
    job has there, and the NCCL that it runs."""

    node: str
    fabric: NodeFabric
    ports: tuple[FabricPort, ...]
    gpus: int = 0
    nccl: Version | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A sentence that names the node, the port where it is about one, and what differs."""

    node: str
    text: str
    port: str = ""


@dataclass(slots=True)
class Rails:
    """`kinds` has the kind of every member, in their order: those of one kind differ in their names
    and addresses only. `ports` has for each rail the port of each kind, None where it has none.
    `agreed` are the places of the rails that all share. `fewer`: rails that only a node with fewer
    GPUs lacks."""

    kinds: list[int]
    common: list[Rail]
    ports: list[list[FabricPort | None]]
    agreed: list[int]
    family: Family
    differences: list[Difference] = field(default_factory=list)
    fewer: bool = False


@dataclass(slots=True)
class _Kind:
    """Nodes that are alike: the first of them, how many there are, and the members of the gang."""

    first: Member
    count: int = 0
    members: list[Member] = field(default_factory=list)


Layout = tuple[str, ...]


def rails_of(members: Sequence[Member], witnesses: Sequence[Member] = ()) -> Rails:
    """Match the ports of `members`, each of which has at least one. `witnesses` are nodes that the
    job has met before: between two that differ they say which one is unusual."""
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
    layout, sample = _reference(kinds)
    aligned = [align(kind.first, layout, sample) for kind in kinds]
    family = _family(kinds)
    found = Rails(of_members, [], [], [], family)
    bad: set[int] = set()
    for rail in range(len(layout)):
        ports = [mine[rail] for mine in aligned]
        common, differing = _compared(rail, kinds, ports, family)
        found.common.append(common)
        found.ports.append(ports)
        found.differences += differing
        if differing:
            bad.add(rail)
    ours = [at for at, kind in enumerate(kinds) if kind.members]
    # What nobody has is not cabled, or not for jobs: in that they do not differ.
    dark = {rail for rail, ports in enumerate(found.ports) if not any(ports[at] for at in ours)}
    bad |= dark
    gpus = max((member.gpus for member in members), default=0)
    for at in ours:
        lacking = [rail for rail in range(len(layout)) if aligned[at][rail] is None]
        bad |= set(lacking)
        lacking = [rail for rail in lacking if rail not in dark]
        if lacking:
            texts = [_lacking(it, members, layout, lacking, gpus) for it in kinds[at].members]
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
)


def _signature(member: Member) -> object:
    """Of two nodes for which it is equal the same is decided."""
    fabric = member.fabric
    return (
        tuple(map(_PORT, member.ports)),
        len(fabric.ports),
        fabric.missing,
        fabric.group,
        fabric.range,
        tuple(fabric.nccl_conf.items()),
        member.gpus,
        member.nccl,
    )


def align(member: Member, layout: Layout, sample: Sequence[FabricPort]) -> list[FabricPort | None]:
    """The member's port for each place of a layout; `sample` are the ports of one that has it."""
    own, full = {port.pci: port for port in member.ports}, set(layout_of(member))
    slots = set(layout)
    if "" not in slots | full and (slots <= full or full <= slots):
        return [own.get(pci) for pci in layout]
    ports = list(member.ports)
    if len(ports) == len(layout):
        return list(ports)
    if len(ports) > len(layout):
        return [ports[at] for at in _places(sample, ports, len(layout))]
    made: list[FabricPort | None] = [None] * len(layout)
    for port, at in zip(ports, _places(ports, sample, len(ports)), strict=True):
        made[at] = port
    return made


def layout_of(member: Member) -> Layout:
    """The slots of all ports that the node has for jobs, be they in order or not."""
    slots = [port.pci for port in member.ports] + [port.pci for port in _missing(member)]
    return tuple(sorted(slots, key=function_order))


def _missing(member: Member) -> tuple[MissingPort, ...]:
    """Of part of a node only what is near to its GPUs counts, and of these ports nobody knows."""
    part = len(member.ports) < len(member.fabric.ports)
    return () if part else member.fabric.missing


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
            return f"is an {value}"
        case "rate_gbps":
            return f"runs at {value:g} Gb/s"
        case "sm_lid":
            return f"has the subnet manager at LID {value}"
        case "prefix":
            return f"is in the subnet {value}"
        case _:
            return f"has MTU {value}"


_FIELDS: Final = ("link_layer", "model", "rate_gbps", "sm_lid", "prefix", "mtu")


def _reference(kinds: Sequence[_Kind]) -> tuple[Layout, tuple[FabricPort, ...]]:
    """The layout that most have; of several, the one with most ports."""
    layouts = [layout_of(kind.first) for kind in kinds]
    counted: Counter[Layout] = Counter()
    for layout, kind in zip(layouts, kinds, strict=True):
        counted[layout] += kind.count
    usual = max(counted, key=lambda it: (counted[it], len(it)))
    having = [kind.first.ports for kind, it in zip(kinds, layouts, strict=True) if it == usual]
    return usual, max(having, key=len)


def _places(few: Sequence[FabricPort], many: Sequence[FabricPort], count: int) -> list[int]:
    """Places in `many`, in order, that are like those of `few` one by one; else the first ones."""
    places: list[int] = []
    at = 0
    for port in few[:count]:
        while at < len(many) and unlike(port, many[at]) is not None:
            at += 1
        if at == len(many):
            break
        places.append(at)
        at += 1
    return places if len(places) == count else list(range(count))


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
    lacking: Sequence[int],
    gpus: int,
) -> Difference | None:
    """Why a node has no port for these rails; None where it is a smaller one, and in order."""
    slots = {layout[rail] for rail in lacking}
    missing = [it for it in _missing(member) if it.pci in slots or it.pci not in layout]
    have, of = len(member.ports), len(layout)
    if missing:
        first = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        text = f"{member.node}: {first.key} cannot be used: {first.why}{more}; {_has(have, of)}"
        return Difference(member.node, text, first.key)
    if member.gpus < gpus:
        return None
    first_rail = lacking[0]
    slot = f" at {layout[first_rail]}" if layout[first_rail] else ""
    group = member.fabric.group or "its HCAs"
    text = (
        f"{member.node} has {have} port{'s' if have != 1 else ''} of {group} and no port{slot} for "
        f"rail {first_rail}, {_others(member, members, of)}"
    )
    return Difference(member.node, text, layout[first_rail])


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
