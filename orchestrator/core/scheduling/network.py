"""The network of a gang: the best of those that all of its nodes share."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.observations.interfaces import (
    Endpoint,
    Interface,
    InterfaceKind,
    NetworkRank,
    rank_of,
    usable_address,
    usable_name,
)
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.gpus import one_per_machine

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network

_WORDS: Final = {
    NetworkRank.INFINIBAND: "InfiniBand",
    NetworkRank.ROCE: "RoCE",
    NetworkRank.ETHERNET: "Ethernet",
    NetworkRank.VETH: "veth",
    NetworkRank.TUNNEL: "tunnel",
    NetworkRank.NEVER: "not a network of its own",
}
_NODES_NAMED: Final = 4
_ADDRESSES_NAMED: Final = 5
_UNTOLD: Final = "unknown"
_DOUBLED_MAX: Final = 16
"""Number of nodes in one network that may be skipped because they report others' addresses."""


class SharedNetwork(msgspec.Struct, frozen=True):
    """The network of a gang: one endpoint per node in node-rank order, and the reason as text."""

    endpoints: tuple[Endpoint, ...]
    text: str


class NoSharedNetwork(msgspec.Struct, frozen=True):
    """No shared network. `odd` is the single node that prevents one, if there is exactly one."""

    text: str
    odd: NodeName | None = None


class _Place(msgspec.Struct, frozen=True):
    """An address of a node.

    A lower `rank` is a better network. Of several addresses of one node, the least `order` wins.
    """

    subnet: str
    version: int
    address: str
    interface: str
    kind: InterfaceKind
    rank: NetworkRank
    speed_mbps: int
    running: bool
    pinned: bool
    order: tuple[int, int, int, int, str]


def choose(nodes: Sequence[Node], networks: Sequence[str] = ()) -> SharedNetwork | NoSharedNetwork:
    """The network of a gang whose nodes have reported their interfaces.

    `networks` are the operator's allowed interface names and CIDRs, the best first. Pins in an
    agent's own configuration come before `networks`.
    """
    doubled: set[str] = set()
    found = _common(nodes, networks, doubled)
    return found or NoSharedNetwork(
        _no_network_text(nodes, networks, doubled), _odd(nodes, networks)
    )


def _common(
    nodes: Sequence[Node], networks: Sequence[str], doubled: set[str]
) -> SharedNetwork | None:
    """The best shared network, or None; adds the duplicate addresses that rule one out to
    `doubled`.
    """
    for entry in networks or (None,):
        allowed = [_allowed(node, entry) for node in nodes]
        found = _shared(nodes, allowed, doubled)
        named = entry is not None or all(_pinned(node) for node in nodes)
        if found is None and named:
            # If addresses of several subnets are named explicitly, they are assumed to be routed.
            found = _routed(nodes, allowed, doubled)
        if found is not None:
            return SharedNetwork(_endpoints(nodes, found), _why(nodes, found, entry))
    if len({_host(node) for node in nodes}) == 1:
        loopback = [[p for p in _of(node) if p.kind is InterfaceKind.LOOPBACK] for node in nodes]
        found = _shared(nodes, loopback, doubled)
        if found is not None and not networks:
            return SharedNetwork(_endpoints(nodes, found), _why(nodes, found, None))
    return None


def reachable_gang(
    nodes: Sequence[Node], least: int, networks: Sequence[str] = (), most: int | None = None
) -> tuple[Node, ...] | None:
    """The largest group of `least`..`most` nodes that share a network, earlier nodes first.

    `most` defaults to `least`. Returns None if no such group exists. Of agents that see the same
    GPUs, the result has only one; each of them may be in a different network.
    """
    most = min(least if most is None else most, len(nodes))
    if most < least:
        return None
    ahead = one_per_machine(nodes[:most])
    if len(ahead) < most:
        ahead = one_per_machine(nodes)[:most]
    best = _agreeing(ahead, least, networks) if len(ahead) >= least else ()
    if len(best) == most:
        return best
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        for key in sorted(_keys(node, networks), key=str):
            groups.setdefault(key, []).append(node)
    # A node that does not report its interfaces may be on any network.
    untold = groups.get(_UNTOLD, [])
    whole = (group if group is untold else [*group, *untold] for group in groups.values())
    alone = [one_per_machine(group) for group in whole]
    for group in sorted(alone, key=lambda it: min(len(it), most), reverse=True):
        wanted = max(least, len(best) + 1)
        best = _undoubled(group, wanted, most, networks) or best
        if len(best) == most:
            break
    return best or None


def _undoubled(
    nodes: Sequence[Node], least: int, most: int, networks: Sequence[str]
) -> tuple[Node, ...]:
    """The largest group of `least`..`most` nodes that share a network, or ().

    Leaves out a node that reports the address of a node before it.
    """
    left = list(nodes)
    found: tuple[Node, ...] = ()
    for _ in range(_DOUBLED_MAX + 1):
        if len(left) < least:
            break
        good = _agreeing(left[:most], 1, networks)
        if len(good) >= max(least, len(found) + 1):
            found = good
        if len(good) == len(left[:most]) or not good:
            break
        del left[len(good)]
    return found


def _agreeing(nodes: Sequence[Node], least: int, networks: Sequence[str]) -> tuple[Node, ...]:
    """The longest prefix of `nodes` that shares a network; () if it is shorter than `least`.

    Binary search: if a prefix shares a network, every shorter one does, too.
    """
    if agree(nodes, networks):
        return tuple(nodes)
    good, bad = least - 1, len(nodes)
    while bad - good > 1:
        middle = (good + bad) // 2
        if agree(nodes[:middle], networks):
            good = middle
        else:
            bad = middle
    return tuple(nodes[:good]) if good >= least else ()


class Ground(msgspec.Struct, frozen=True):
    """The network of a running gang, as needed to check a node that joins."""

    # of the operator's list; None if there is no list
    entries: tuple[str | None, ...]
    subnet: str
    version: int
    # the launcher's host, if the gang meets on its loopback
    host: str
    pinned: bool
    owners: dict[str, str]  # machines by address


def ground_of(
    gang: Sequence[Node], endpoints: Sequence[Endpoint], networks: Sequence[str] = ()
) -> Ground | None:
    """The network on which a gang has met, the launcher first.

    Returns None if the launcher no longer has its rendezvous address.
    """
    launcher, address = gang[0], endpoints[0].address
    here = next((place for place in _of(launcher) if place.address == address), None)
    if here is None:
        return None
    entries = tuple(entry for entry in networks or (None,) if here in _allowed(launcher, entry))
    alone = not entries and not networks and here.kind is InterfaceKind.LOOPBACK
    if not entries and not alone:
        return None
    return Ground(
        entries,
        here.subnet,
        here.version,
        _host(launcher) if alone else "",
        all(_pinned(node) for node in gang),
        {it.address: _host(node) for it, node in zip(endpoints, gang, strict=True)},
    )


def endpoint_on(ground: Ground, node: Node) -> Endpoint | None:
    """The endpoint of a node that joins a running gang; None if it is not on the gang's network."""
    found: list[_Place] = []
    for entry in ground.entries:
        allowed = _allowed(node, entry)
        found += [place for place in allowed if place.subnet == ground.subnet][:1]
        if entry is not None or (ground.pinned and _pinned(node)):
            found += [place for place in allowed if place.version == ground.version][:1]
    if ground.host and ground.host == _host(node):
        loopback = (place for place in _of(node) if place.kind is InterfaceKind.LOOPBACK)
        found += [place for place in loopback if place.subnet == ground.subnet][:1]
    for place in found:
        if ground.owners.get(place.address, _host(node)) == _host(node):
            return Endpoint(node.name, place.address, place.interface)
    return None


def agree(nodes: Sequence[Node], networks: Sequence[str] = ()) -> bool:
    """True if these nodes share a network, as far as is known."""
    if any(not node.inventory.interfaces for node in nodes):
        return True
    return _common(nodes, networks, set()) is not None


def _keys(node: Node, networks: Sequence[str]) -> set[object]:
    """The subnets, entries and pins by which a node can match others."""
    if not node.inventory.interfaces:
        return {_UNTOLD}
    found: set[object] = {"pinned"} if _pinned(node) else set()
    for entry in networks or (None,):
        allowed = _allowed(node, entry)
        found |= {place.subnet for place in allowed}
        if entry is not None and allowed:
            found.add(entry)
    return found


@lru_cache(maxsize=16_384)
def _places(interfaces: tuple[Interface, ...]) -> tuple[_Place, ...]:
    """Every usable address, the best first; unreadable ones are left out."""
    found = [
        _place(interface, text)
        for interface in interfaces
        if usable_name(interface.name) or (interface.pinned and not interface.name)
        for text in interface.addresses
        if usable_address(text)
    ]
    return tuple(sorted(found, key=lambda place: place.order))


def _place(interface: Interface, text: str) -> _Place:
    subnet = ipaddress.ip_interface(text).network
    rank, name = rank_of(interface.kind, rdma=interface.rdma), interface.name
    return _Place(
        subnet=str(subnet),
        version=subnet.version,
        address=text.partition("/")[0],
        interface=name,
        kind=interface.kind,
        rank=rank,
        speed_mbps=interface.speed_mbps,
        running=interface.running,
        pinned=interface.pinned,
        # eth2 comes before eth10.
        order=(rank, -interface.speed_mbps, subnet.version, len(name), name),
    )


def _of(node: Node) -> tuple[_Place, ...]:
    return _places(node.inventory.interfaces)


def _pinned(node: Node) -> bool:
    """True if the node pins an interface, even one that has no address any more."""
    return any(interface.pinned for interface in node.inventory.interfaces)


def _allowed(node: Node, entry: str | None) -> list[_Place]:
    """The addresses of a node that may be used.

    The pinned ones if there are any, otherwise those that match the operator's `entry`. Without an
    entry: all but those that lead only to the node itself.
    """
    places = _of(node)
    if _pinned(node):
        return [place for place in places if place.pinned]
    if entry is None:
        return [place for place in places if place.rank != NetworkRank.NEVER and place.running]
    running = [place for place in places if place.running]
    if cidr(entry) is None:
        return [place for place in running if place.interface == entry]
    return [place for place in running if _inside(place.address, entry)]


@lru_cache(maxsize=16_384)
def _inside(address: str, entry: str) -> bool:
    subnet = cidr(entry)
    return subnet is not None and ipaddress.ip_address(address) in subnet


@lru_cache(maxsize=1024)
def cidr(entry: str) -> Subnet | None:
    """The network that an entry of `networks` denotes; None if it is an interface name."""
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _shared(
    nodes: Sequence[Node], allowed: Sequence[Sequence[_Place]], doubled: set[str]
) -> list[_Place] | None:
    """The address of each node in the best common subnet; None if there is no common subnet."""
    # `allowed` is sorted, so reversed() keeps each node's best address of a subnet.
    by_subnet = [{place.subnet: place for place in reversed(some)} for some in allowed]
    common = set(by_subnet[0]).intersection(*by_subnet[1:])
    found = [[mine[subnet] for mine in by_subnet] for subnet in common]
    found.sort(key=_gang_order)
    return next((gang for gang in found if not _doubled(nodes, gang, doubled)), None)


def _routed(
    nodes: Sequence[Node], allowed: Sequence[Sequence[_Place]], doubled: set[str]
) -> list[_Place] | None:
    """An address of each node, all of one IP version; None if neither version is on all nodes."""
    for version in (4, 6):
        some = [[p for p in mine if p.version == version] for mine in allowed]
        if all(some):
            gang = [mine[0] for mine in some]
            if not _doubled(nodes, gang, doubled):
                return gang
    return None


def _gang_order(gang: Sequence[_Place]) -> tuple[int, int, int, int, str, str]:
    """Sort key of a gang's network: the worst member counts."""
    name = gang[0].interface
    return (
        max(place.rank for place in gang),
        -min(place.speed_mbps for place in gang),
        gang[0].version,
        len(name),
        name,
        gang[0].subnet,
    )


def _doubled(nodes: Sequence[Node], gang: Sequence[_Place], doubled: set[str]) -> bool:
    """True if two machines report the same address, which rules the network out."""
    owners: dict[str, Node] = {}
    for node, place in zip(nodes, gang, strict=True):
        other = owners.setdefault(place.address, node)
        if _host(other) != _host(node):
            doubled.add(f"{other.name} and {node.name} both have {place.address}")
            return True
    return False


def _host(node: Node) -> str:
    """A key for the machine of a node.

    Clones of an image share a machine id, so it counts only if the agent reports `shared_host`.
    """
    inventory = node.inventory
    return f"machine {inventory.machine_id}" if inventory.shared_host else node.name


def _endpoints(nodes: Sequence[Node], gang: Sequence[_Place]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(node.name, place.address, place.interface)
        for node, place in zip(nodes, gang, strict=True)
    )


def _why(nodes: Sequence[Node], gang: Sequence[_Place], entry: str | None) -> str:
    subnets = {place.subnet for place in gang}
    where = gang[0].subnet if len(subnets) == 1 else f"{len(subnets)} subnets"
    names = sorted({place.interface for place in gang if place.interface})
    on = f" on {', '.join(names[:_NODES_NAMED])}" if names else ""
    if all(place.pinned for place in gang):
        return f"{where}{on}, from the agents' configuration"
    if entry is not None:
        return f"{where}{on}, from `networks` ({entry})"
    if gang[0].kind is InterfaceKind.LOOPBACK:
        return f"{where}{on}, because all nodes are on one machine"
    speed = min(place.speed_mbps for place in gang)
    what = _WORDS[max(place.rank for place in gang)]
    what += f", {speed / 1000:g} Gbit/s" if speed else ""
    best = f", the best that all {len(nodes)} nodes share" if len(nodes) > 1 else ""
    return f"{where}{on} ({what}){best}"


def _no_network_text(nodes: Sequence[Node], networks: Sequence[str], doubled: set[str]) -> str:
    has = [f"{node.name} has {_addresses(node)}" for node in nodes[:_NODES_NAMED]]
    if len(nodes) > _NODES_NAMED:
        has.append(f"and {len(nodes) - _NODES_NAMED} more")
    among = f" among `networks` ({', '.join(networks)})" if networks else ""
    twice = f"; {', '.join(sorted(doubled)[:_NODES_NAMED])}" if doubled else ""
    return (
        f"its nodes share no network{among}: {'; '.join(has)}{twice}; connect them, or name in "
        "`networks` of the coordinator's configuration one on which they reach each other"
    )


def _addresses(node: Node) -> str:
    parts = []
    for interface in node.inventory.interfaces:
        if interface.kind is InterfaceKind.LOOPBACK and not interface.pinned:
            continue
        notes = [] if interface.running else ["down"]
        if interface.kind is InterfaceKind.VIRTUAL and interface.addresses:
            notes.append("ends on this machine")
        if interface.pinned:
            notes.append("named in its configuration")
        note = f" ({', '.join(notes)})" if notes else ""
        some = " ".join(interface.addresses) or "without an address"
        parts.append(f"{interface.name} {some}{note}".lstrip())
    more = len(parts) - _ADDRESSES_NAMED
    return (
        ", ".join(parts[:_ADDRESSES_NAMED] + ([f"and {more} more"] if more > 0 else [])) or "none"
    )


def _odd(nodes: Sequence[Node], networks: Sequence[str]) -> NodeName | None:
    """The one of at least three nodes that lacks a subnet that all others share."""
    if len(nodes) < 3:
        return None
    for entry in networks or (None,):
        having = Counter(
            subnet for node in nodes for subnet in {p.subnet for p in _allowed(node, entry)}
        )
        for subnet, count in having.items():
            if count != len(nodes) - 1:
                continue
            odd = next(n for n in nodes if all(p.subnet != subnet for p in _allowed(n, entry)))
            if agree([node for node in nodes if node is not odd], networks):
                return odd.name
    return None
