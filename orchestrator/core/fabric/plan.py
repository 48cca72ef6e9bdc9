"""The fabric plan of a gang, computed from the fresh probes of all its nodes.

If the nodes of a gang use different ports, NCCL hangs or silently falls back to TCP. So either all
nodes use the same rails, or none uses RDMA and the plan says why. A job that requires RDMA does not
start on nodes that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.fabric import nccl_env as env
from muster.fabric.gids import Family
from muster.fabric.model import ETHERNET
from muster.fabric.nccl_version import Version, devices_max, version_of
from muster.fabric.no_port_reason import no_port_reason
from muster.protocol.observations.fabric import FabricPort, NodeFabric
from muster.spec.model import Rdma
from orchestrator.core.fabric.mismatch_notes import mismatch_notes, settings_notes
from orchestrator.core.fabric.nccl_conf import file_notes, overruling
from orchestrator.core.fabric.port_diff import described, gids, lacks_gid, no_address, unlike
from orchestrator.core.fabric.port_slots import FabricMember, PortPlace, align, places_of
from orchestrator.core.fabric.rails import PortDifference, Rails, first_by_node, rails_of
from orchestrator.core.model.fabric_plan import FabricPlan, FabricTransport, NodePlan, Rail

NO_IB: Final = {"NCCL_IB_DISABLE": "1"}
ONLY_IB: Final = {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none"}
"""With these settings NCCL fails if it finds no port, instead of falling back to TCP."""
PLUGIN: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
"""Variables by which a job or a site selects another network than NCCL's own."""
_NOTES_MAX: Final = 8
_ALONE: Final = "one node: there is no traffic between nodes"


class PlanRefused(msgspec.Struct, frozen=True):
    """The gang does not get the RDMA that it requires.

    `differences` has the fault of each node, the most important first.
    """

    differences: tuple[PortDifference, ...]

    @property
    def text(self) -> str:
        """The refusal in one sentence."""
        more = len(self.differences) - 1
        also = f" (and {more} more node{'s' if more > 1 else ''})" if more else ""
        return f"rdma: required, but {self.differences[0].text}{also}"


class FabricRequest(msgspec.Struct, frozen=True):
    """The job's requirements on the fabric.

    `alone`: a gang of one node that cannot grow. `plugins`: nodes whose tasks bring their own NCCL
    network.

    `plugin`: the setting that names such a network on all nodes. `sockets`: the setting that turns
    RDMA off on some node. `conf`: the NCCL file that the job names. Each is empty if not set.
    """

    rdma: Rdma = Rdma.PREFERRED
    alone: bool = False
    plugins: frozenset[str] = frozenset()
    plugin: str = ""
    sockets: str = ""
    conf: str = ""


def plan(
    members: Sequence[FabricMember], wish: FabricRequest, witnesses: Sequence[FabricMember] = ()
) -> FabricPlan | PlanRefused | None:
    """Plan the fabric of a gang; `members` are its nodes in rank order.

    `witnesses` are other nodes of the job's earlier attempts. Returns None if no node has RDMA
    hardware and the job only prefers RDMA.
    """
    if wish.rdma is Rdma.OFF:
        return _tcp("TCP, as set in the job (rdma: off)")
    if wish.sockets:
        return _tcp(f"TCP: the job's own {wish.sockets} turns RDMA off")
    required = wish.rdma is Rdma.REQUIRED
    without = [
        PortDifference(it.node, f"{it.node} {why}") for it in members if (why := rdma_problem(it))
    ]
    if without and required and wish.plugin and not wish.alone:
        # Muster cannot check what the plugin finds there: the traffic evidence decides.
        return FabricPlan(FabricTransport.OPEN, f"left to the plugin {wish.plugin}")
    if without and required and not wish.alone:
        return PlanRefused(tuple(without))
    if without:
        return _without(members, without, wish)
    rails = rails_of(members, [it for it in witnesses if not rdma_problem(it)])
    versions = _unlike_versions(members)
    if required and not wish.alone and (rails.differences or versions):
        found = first_by_node([*rails.differences, *versions])
        return PlanRefused(tuple(found.values()))
    return _over(rails, members, wish, [it.text for it in versions])


def rdma_problem(member: FabricMember) -> str | None:
    """Return why a node cannot use RDMA, in words that follow its name; None if it may be able."""
    fabric = member.fabric
    if fabric.unseen:
        return f"does not know its RDMA equipment: {fabric.unseen}"
    if fabric.stops:
        return f"cannot use RDMA: {fabric.stops[0]}"
    if member.ports:
        return None
    return no_port_reason(fabric)


def join(plan: FabricPlan | None, member: FabricMember, wish: FabricRequest) -> NodePlan | str:
    """The plan for a node that joins a running gang, or a sentence why the node does not fit."""
    why = rdma_problem(member)
    if plan is None or plan.transport is not FabricTransport.RDMA:
        touched = plan is not None and plan.transport is FabricTransport.TCP
        return NodePlan(env=dict(NO_IB) if touched or _has_any(member.fabric) else {})
    if why is not None:
        return f"{member.node} {why}, and its gang uses RDMA"
    made = _fitted(plan, member, wish)
    if isinstance(made, str) and len(member.ports) < len(member.fabric.ports):
        # The gang may consist of parts of nodes, and use all ports of these nodes.
        whole = _fitted(plan, replace(member, ports=member.fabric.ports), wish)
        return made if isinstance(whole, str) else whole
    return made


def _fitted(plan: FabricPlan, member: FabricMember, wish: FabricRequest) -> NodePlan | str:
    family: Family = "AF_INET6" if plan.family == "AF_INET6" else "AF_INET"
    ports = _joining(plan, member)
    used: list[FabricPort] = []
    for number, (port, rail) in enumerate(zip(ports, plan.rails, strict=True)):
        if port is None:
            return f"{member.node} has no port for rail {number} of its gang"
        name = unlike(port, rail)
        if name is not None:
            mine, its = described(name, getattr(port, name)), described(name, getattr(rail, name))
            return f"{member.node}: {port.key} {mine}, and the one of its gang {its}"
        if lacks_gid(port, family):
            return f"{member.node}: {no_address(port, family)}, as its gang has"
        used.append(port)
    made, apart = _node_plan(member, used, family, wish)
    return made if apart is None else f"{member.node}: {apart}"


def _joining(plan: FabricPlan, member: FabricMember) -> list[FabricPort | None]:
    """The node's port for each rail of a running gang."""
    mine = places_of(member)
    layout = [PortPlace((rail.pci, 0), "", _as_port(rail)) for rail in plan.rails]
    own = {place.slot[0]: place.port for place in mine}
    if len(own) == len(mine) and all(rail.pci and rail.pci in own for rail in plan.rails):
        return [own[rail.pci] for rail in plan.rails]
    if plan.places == 0 and len(member.ports) == len(plan.rails):
        return list(member.ports)
    if len(mine) == plan.places:
        return [mine[rail.place].port for rail in plan.rails]
    return [None if it is None else it.port for it in align(mine, layout)]


def _as_port(rail: Rail) -> FabricPort:
    return FabricPort(
        "",
        1,
        rail.pci,
        rail.link_layer,
        rail.model,
        rail.rate_gbps,
        sm_lid=rail.sm_lid,
        prefix=rail.prefix,
        mtu=rail.mtu,
    )


def _has_any(fabric: NodeFabric) -> bool:
    """True if NCCL might find RDMA hardware on the node by itself."""
    return bool(fabric.ports or fabric.missing or fabric.unused or fabric.stops or fabric.unseen)


def _without(
    members: Sequence[FabricMember], without: Sequence[PortDifference], wish: FabricRequest
) -> FabricPlan | None:
    """The plan of a gang of which some nodes cannot use RDMA and which may run without it."""
    if not any(_has_any(member.fabric) for member in members):
        if wish.rdma is Rdma.PREFERRED:
            return None
        return FabricPlan(FabricTransport.OPEN, _ALONE)
    if wish.alone:
        # Because NCCL would still initialize its network, and fail on the broken parts.
        return _tcp(f"{_ALONE}; {without[0].text}")
    # If only some nodes used RDMA, NCCL would hang.
    more = len(without) - 1
    also = f" (and {more} more node{'s' if more > 1 else ''})" if more else ""
    return _tcp(f"TCP: {without[0].text}{also}")


def _tcp(text: str, notes: Sequence[str] = ()) -> FabricPlan:
    return FabricPlan(
        FabricTransport.TCP, text, kinds=(NodePlan(env=dict(NO_IB)),), notes=tuple(notes)
    )


def _unlike_versions(members: Sequence[FabricMember]) -> list[PortDifference]:
    """Nodes with another NCCL version than most; the versions could not talk to each other."""
    counted = Counter(member.nccl for member in members if member.nccl is not None)
    if len(counted) < 2:
        return []
    (usual, count), *_ = counted.most_common()
    return [
        PortDifference(
            member.node,
            f"{member.node} has NCCL {_text(member.nccl)}, {count} other"
            f"{'s' if count > 1 else ''} {_text(usual)}",
        )
        for member in members
        if member.nccl not in (None, usual)
    ]


def _over(
    rails: Rails, members: Sequence[FabricMember], wish: FabricRequest, beside: Sequence[str]
) -> FabricPlan | PlanRefused:
    """The plan over the rails that all nodes share. `beside`: notes that are not about rails."""
    required = wish.rdma is Rdma.REQUIRED and not wish.alone
    notes = [*(difference.text for difference in rails.differences), *rails.notes]
    agreed = list(rails.agreed)
    most = min(devices_max(member.nccl) for member in members)
    if len(agreed) > most:
        notes.append(f"{most} of {len(agreed)} rails are used: NCCL takes no more")
        agreed = agreed[:most]
    while agreed:
        described: dict[tuple[int, bool], tuple[NodePlan, str | None]] = {}
        made: list[NodePlan] = []
        apart = []
        for kind, member in zip(rails.kinds, members, strict=True):
            key = kind, member.node in wish.plugins
            if key not in described:
                described[key] = _made(rails, agreed, kind, member, wish)
            mine, why = described[key]
            made.append(mine)
            if why is not None:
                apart.append(PortDifference(member.node, f"{member.node}: {why}"))
        if not apart:
            if wish.conf:
                beside = [*beside, f"the job's NCCL_CONF_FILE={wish.conf} may differ"]
            return _planned(rails, agreed, members, made, notes, beside)
        if required:
            return PlanRefused(tuple(apart))
        notes.append(apart[0].text)
        agreed = _of_one_index(rails, agreed)
    first = notes[0] if notes else "its nodes have no rail in common"
    return _tcp(f"TCP: {first}", _bounded([*notes[1:], *beside]))


def _planned(
    rails: Rails,
    agreed: Sequence[int],
    members: Sequence[FabricMember],
    made: Sequence[NodePlan],
    notes: Sequence[str],
    beside: Sequence[str],
) -> FabricPlan:
    roce = any(rails.common[rail].link_layer == ETHERNET for rail in agreed)
    beside = [*beside, *mismatch_notes(rails, agreed, members), *settings_notes(members)]
    beside += file_notes(members, made, roce=roce)
    # Equal plans are found by their content, because an environment is not hashable.
    places: dict[object, int] = {}
    kinds: list[NodePlan] = []
    nodes = []
    for mine in made:
        place = places.setdefault(
            (mine.hcas, mine.netdevs, tuple(mine.env.items()), mine.nccl), len(kinds)
        )
        if place == len(kinds):
            kinds.append(mine)
        nodes.append(place)
    common = tuple(
        replace(rails.common[rail], place=-1 if rails.paired else rail) for rail in agreed
    )
    return FabricPlan(
        FabricTransport.RDMA,
        _in_words(rails, agreed, notes),
        rails=common,
        kinds=tuple(kinds),
        nodes=tuple(nodes) if len(kinds) > 1 else (),
        family=rails.family if roce else "",
        notes=_bounded([*(notes[1:] if len(agreed) < rails.count else notes), *beside]),
        places=0 if rails.paired else len(rails.common),
    )


def _in_words(rails: Rails, agreed: Sequence[int], notes: Sequence[str]) -> str:
    common = [rails.common[rail] for rail in agreed]
    kinds = Counter(" ".join(word for word in (it.link_layer, it.model) if word) for it in common)
    rates = sorted({rail.rate_gbps for rail in common if rail.rate_gbps is not None})
    speed = f", {'/'.join(f'{rate:g}' for rate in rates)} Gb/s each" if rates else ""
    of = rails.count
    count = f"{len(agreed)} of {of} rails" if len(agreed) < of else _rails(len(agreed))
    group = " + ".join(kind for kind in kinds if kind) or "an unknown kind"
    text = f"RDMA over {count} of {group}{speed}"
    if len(agreed) == of:
        return text
    smaller = "a node with fewer GPUs has no more" if rails.fewer else rails.dark
    why = notes[0] if notes else smaller
    return f"{text}; {why}" if why else text


def _rails(count: int) -> str:
    return "1 rail" if count == 1 else f"{count} rails"


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    if len(notes) <= _NOTES_MAX:
        return tuple(notes)
    more = len(notes) - _NOTES_MAX + 1
    return (*notes[: _NOTES_MAX - 1], f"and {more} more differences")


def _made(
    rails: Rails, agreed: Sequence[int], kind: int, member: FabricMember, wish: FabricRequest
) -> tuple[NodePlan, str | None]:
    ports = [port for rail in agreed if (port := rails.ports[rail][kind]) is not None]
    return _node_plan(member, ports, rails.family, wish)


def _node_plan(
    member: FabricMember, ports: Sequence[FabricPort], family: Family, wish: FabricRequest
) -> tuple[NodePlan, str | None]:
    """The plan of one node over these ports, and the reason if no environment fits them."""
    used = [_for_environment(port, family) for port in ports]
    conf = member.fabric.nccl_conf
    made = env.of_ports(
        used,
        (),
        member.nccl,
        family if any(port.link_layer == ETHERNET for port in ports) else "AF_INET",
        member.fabric.range,
        version_of(member.fabric.ucx),
    )
    values = overruling(conf, used, family, member.nccl) | made.values | member.fabric.settings
    own = member.node in wish.plugins or any(name in conf for name in PLUGIN)
    if wish.rdma is Rdma.REQUIRED and not wish.alone and not own:
        values |= ONLY_IB
    netdevs = tuple(dict.fromkeys(port.netdev for port in ports if port.netdev))
    hcas = tuple(port.key for port in ports)
    return NodePlan(hcas, netdevs, values, _text(member.nccl)), made.apart


def _for_environment(port: FabricPort, family: Family) -> env.Port:
    found = gids(port, family)
    if port.link_layer != ETHERNET or found is None:
        return env.Port(port.name, port.port, roce=port.link_layer == ETHERNET)
    return env.Port(
        port.name,
        port.port,
        roce=True,
        index=found.index,
        fit=frozenset(found.fit) | {found.index},
        ranged=found.ranged,
        sparse=port.sparse,
    )


def _of_one_index(rails: Rails, agreed: Sequence[int]) -> list[int]:
    """Reduce the rails for an NCCL that takes one GID index for all ports.

    Keeps the rails on which each node has the index that most of its ports need. Returns [] if that
    changes nothing.
    """
    left = list(agreed)
    for at in sorted(set(rails.kinds)):
        wanted: dict[int, int | None] = {}
        for rail in left:
            port = rails.ports[rail][at]
            found = None if port is None else gids(port, rails.family)
            wanted[rail] = None if found is None else found.index
        counted = Counter(index for index in wanted.values() if index is not None)
        if counted:
            usual = counted.most_common(1)[0][0]
            left = [rail for rail in left if _fits(rails.ports[rail][at], usual, rails.family)]
    return left if len(left) < len(agreed) else []


def _fits(port: FabricPort | None, index: int, family: Family) -> bool:
    found = None if port is None else gids(port, family)
    return found is not None and (index == found.index or index in found.fit)


def _text(version: Version | None) -> str:
    return "" if version is None else f"{version[0]}.{version[1]}"


def nccl_of(*texts: str) -> Version | None:
    """The first of these texts that is a version; None if none is."""
    return next((found for text in texts if (found := version_of(text)) is not None), None)
