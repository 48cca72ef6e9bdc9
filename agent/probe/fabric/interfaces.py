"""Network interfaces and their addresses: from the kernel for this machine, from sysfs and proc for
a copied tree.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from agent.probe import netlink
from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.netlink import LinkAddress, NetworkLink
from agent.probe.network import kind_of, speed_at
from muster.fabric.model import ETHERNET, INFINIBAND, Hca, NetworkInterface
from muster.fabric.natural_sort import natural
from muster.fabric.topology import is_function
from muster.protocol.observations.interfaces import (
    InterfaceKind,
    NetworkRank,
    rank_of,
    usable_address,
    usable_name,
)

NET: Final = "sys/class/net"
_NETWORKS_MAX: Final = 512
_UP, _RUNNING = 0x1, 0x40
_PROC_NET: Final = ("proc/net", "proc/self/net", "proc/1/net")
_LOCAL: Final = re.compile(r"\|-- ([0-9.]{7,15})\s*\n\s*/32 host LOCAL")


@dataclass(frozen=True, slots=True)
class Networks:
    """The interfaces. `addressed` means that all of their addresses are known, so that one without
    an address has none.
    """

    networks: tuple[NetworkInterface, ...]
    addressed: bool


def networks_of(tree: FsRoot, hcas: Sequence[Hca]) -> Networks:
    """Return all interfaces that lead off the machine, with the HCAs behind them."""
    found, addressed = _kernel(tree) if tree.live else _copied(tree)
    links = {link.index: link for link in found.links}
    addresses: dict[int, list[str]] = {}
    for entry in sorted(found.addresses, key=lambda entry: entry.secondary):
        if usable_address(entry.address):
            addresses.setdefault(entry.index, []).append(entry.address)
    behind = _behind(hcas)
    of_gids = _of_gids(hcas)
    ipoib = {name for hca in hcas if hca.link_layer == INFINIBAND for name in hca.netdevs}
    made = []
    for link in found.links[:_NETWORKS_MAX]:
        kind = kind_of(link, links, tree)
        if link.name in ipoib and kind is InterfaceKind.ETHERNET:
            kind = InterfaceKind.INFINIBAND
        own = tuple(addresses.get(link.index, ())) or of_gids.get(link.name, ())
        if kind is InterfaceKind.LOOPBACK or (kind is InterfaceKind.VIRTUAL and not own):
            continue
        made.append(_network(tree, link, kind, own, behind.get(link.name, ())))
    known = {network.name for network in made}
    for name, own in of_gids.items():
        if name not in known:
            # A GID names it, although sysfs does not show it.
            hidden = NetworkInterface(
                name=name, kind="ethernet", addresses=own, hcas=behind.get(name, ())
            )
            made.append(hidden)
    made.sort(key=lambda network: natural(network.name))
    return Networks(tuple(made), addressed)


def with_addresses(hcas: Iterable[Hca], networks: Iterable[NetworkInterface]) -> list[Hca]:
    """Return the HCAs with the addresses of their interfaces, those of their GIDs first."""
    by_name = {network.name: network for network in networks}
    made = []
    for hca in hcas:
        own = list(hca.addresses)
        for name in hca.netdevs:
            if name in by_name:
                own += [one.partition("/")[0] for one in by_name[name].addresses]
        made.append(replace(hca, addresses=tuple(dict.fromkeys(own))))
    return made


def sockets(networks: Networks, hcas: Sequence[Hca], pinned: str | None = None) -> tuple[str, ...]:
    """Return the interface for non-RDMA traffic: the pinned one (a name or an address), else the
    best with an address, chosen as for a gang.
    """
    if pinned is not None:
        for network in networks.networks:
            own = (address.partition("/")[0] for address in network.addresses)
            if network.name == pinned or pinned in own:
                return (network.name,)
        return ()
    rdma = {hca.name for hca in hcas if hca.use}
    fit = [
        network
        for network in networks.networks
        if network.running is not False
        and usable_name(network.name)
        and _rank(network, rdma) is not NetworkRank.NEVER
    ]
    having = [network for network in fit if network.addresses]
    if not having and not networks.addressed:
        having = [network for network in fit if network.running]
    best = min(having, key=lambda network: _order(network, rdma), default=None)
    return () if best is None else (best.name,)


def _order(network: NetworkInterface, rdma: set[str]) -> tuple[NetworkRank, int, object]:
    return _rank(network, rdma), -(network.speed_mbps or 0), natural(network.name)


def _rank(network: NetworkInterface, rdma: set[str]) -> NetworkRank:
    return rank_of(InterfaceKind(network.kind), rdma=bool(rdma.intersection(network.hcas)))


def _network(
    tree: FsRoot,
    link: NetworkLink,
    kind: InterfaceKind,
    addresses: tuple[str, ...],
    hcas: tuple[str, ...],
) -> NetworkInterface:
    folder = f"{NET}/{link.name}"
    device = tree.real(f"{folder}/device")
    function = "" if isinstance(device, Unread) else device.rpartition("/")[2]
    if not is_function(function):
        event = sysfs_formats.uevent_of(tree.text(f"{folder}/device/uevent"))
        function = event.get("PCI_SLOT_NAME", "").lower()
    return NetworkInterface(
        name=link.name,
        kind=kind.value,
        addresses=addresses,
        running=_running(tree, link),
        mtu=link.mtu or None,
        speed_mbps=speed_at(tree, f"{folder}/speed"),
        hcas=hcas,
        pci=function if is_function(function) else None,
    )


def _running(tree: FsRoot, link: NetworkLink) -> bool | None:
    if tree.live:
        return link.flags & (_UP | _RUNNING) == _UP | _RUNNING
    state = tree.text(f"{NET}/{link.name}/operstate")
    if isinstance(state, Unread):
        return None
    if state == "unknown":
        return bool(link.flags & _UP)
    return state == "up"


def _kernel(tree: FsRoot) -> tuple[netlink.NetworkSnapshot, bool]:
    try:
        return netlink.read(netlink.ask()), True
    except OSError:
        return _copied(tree)


def _copied(tree: FsRoot) -> tuple[netlink.NetworkSnapshot, bool]:
    names = tree.names(NET)
    links = []
    if not isinstance(names, Unread):
        ordered = sorted(names, key=natural)[:_NETWORKS_MAX]
        indexes = {name: _index(tree, name) for name in ordered}
        links = [_link(tree, name, indexes) for name in ordered if tree.exists(f"{NET}/{name}")]
    addresses, known = _addresses(tree, {link.name: link.index for link in links})
    return netlink.NetworkSnapshot(tuple(links), tuple(addresses)), known


def _index(tree: FsRoot, name: str) -> int:
    """Return the index of the interface, or an unused number."""
    number = _number(tree, f"{NET}/{name}/ifindex")
    return number or -1 - sum(name.encode())


def _link(tree: FsRoot, name: str, indexes: Mapping[str, int]) -> NetworkLink:
    folder = f"{NET}/{name}"
    flags = tree.text(f"{folder}/flags")
    lower = _number(tree, f"{folder}/iflink") or 0
    master = tree.link(f"{folder}/master")
    index = indexes[name]
    return NetworkLink(
        index=index,
        name=name,
        hardware_type=_number(tree, f"{folder}/type") or 1,
        flags=0 if isinstance(flags, Unread) else sysfs_formats.hexadecimal(flags) or 0,
        kind=_kind(tree, name, stacked=lower not in (0, index)),
        mtu=_number(tree, f"{folder}/mtu") or 0,
        lower=lower,
        master=_number(tree, f"{folder}/master/ifindex") or 0
        if isinstance(master, Unread)
        else indexes.get(master.rpartition("/")[2], 0),
    )


def _kind(tree: FsRoot, name: str, *, stacked: bool) -> str:
    """Return the netlink kind, derived from sysfs."""
    folder = f"{NET}/{name}"
    event = sysfs_formats.uevent_of(tree.text(f"{folder}/uevent"))
    if event.get("DEVTYPE"):
        return event["DEVTYPE"]
    for kind, sign in (("bond", "bonding"), ("bridge", "bridge")):
        if tree.exists(f"{folder}/{sign}"):
            return kind
    where = tree.real(folder)
    virtual = not isinstance(where, Unread) and where.startswith("sys/devices/virtual/")
    # In a copy, links have become directories.
    if not virtual and not (where == folder and tree.exists(f"sys/devices/virtual/net/{name}")):
        return ""
    return "veth" if stacked else "virtual"


def _number(tree: FsRoot, path: str) -> int | None:
    text = tree.text(path)
    number = None if isinstance(text, Unread) else sysfs_formats.decimal(text)
    return number if number is not None and abs(number) < 1 << 31 else None


def _addresses(tree: FsRoot, indexes: Mapping[str, int]) -> tuple[list[LinkAddress], bool]:
    """Return the addresses of all interfaces from proc, and whether IPv4 is known."""
    found: list[LinkAddress] = []
    known = False
    for folder in _PROC_NET:
        tries, routes = tree.text(f"{folder}/fib_trie"), tree.text(f"{folder}/route")
        if not isinstance(tries, Unread) and not isinstance(routes, Unread):
            known = True
            found += _fourth(tries, routes, indexes)
        sixth = tree.text(f"{folder}/if_inet6")
        if not isinstance(sixth, Unread):
            found += _sixth(sixth, indexes)
        if found or known:
            break
    return found, known


def _fourth(tries: str, routes: str, indexes: Mapping[str, int]) -> list[LinkAddress]:
    """Combine two files for IPv4: one lists the addresses, the other the networks of the
    interfaces.
    """
    networks = sorted(_routes(routes), key=lambda route: -route[1].prefixlen)
    found = []
    for text in dict.fromkeys(_LOCAL.findall(tries)):
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            continue
        for name, network in networks:
            if address in network and name in indexes:
                found.append(LinkAddress(indexes[name], f"{address}/{network.prefixlen}"))
                break
    return found


def _routes(text: str) -> Iterable[tuple[str, ipaddress.IPv4Network]]:
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or words[2] != "00000000":
            continue
        try:
            destination, mask = (_reversed(words[at]) for at in (1, 7))
            if mask:
                yield words[0], ipaddress.IPv4Network((destination, mask.bit_count()))
        except ValueError:
            continue


def _reversed(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word.zfill(8))[:4], "little")


def _sixth(text: str, indexes: Mapping[str, int]) -> list[LinkAddress]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 6 or words[5] not in indexes or words[3] != "00":
            continue
        try:
            address = ipaddress.IPv6Address(bytes.fromhex(words[0]))
            entry = f"{address}/{int(words[2], 16)}"
        except ValueError:
            continue
        found.append(LinkAddress(indexes[words[5]], entry))
    return found


def _behind(hcas: Iterable[Hca]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for hca in hcas:
        for name in hca.netdevs:
            if hca.name not in found.setdefault(name, []):
                found[name].append(hca.name)
    return {name: tuple(devices) for name, devices in found.items()}


def _of_gids(hcas: Iterable[Hca]) -> dict[str, tuple[str, ...]]:
    """Return the routable addresses that GIDs give to interfaces."""
    found: dict[str, list[str]] = {}
    for hca in hcas:
        if hca.link_layer != ETHERNET:
            continue
        for gid in hca.gids:
            if gid.netdev is not None and gid.address in hca.addresses and gid.address:
                own = found.setdefault(gid.netdev, [])
                if gid.address not in own:
                    own.append(gid.address)
    return {name: tuple(own) for name, own in found.items()}
