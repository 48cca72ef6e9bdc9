"""Interfaces of this node that have an address, and their kinds."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import weakref
from pathlib import Path
from typing import Final

import msgspec

from agent.probe import netlink
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.netlink import NetworkLink, NetworkSnapshot
from muster.protocol.observations.interfaces import (
    ADDRESSES_MAX,
    INTERFACES_MAX,
    Interface,
    InterfaceKind,
    usable_address,
    usable_name,
)

_ETHERNET, _INFINIBAND, _LOOPBACK = 1, 32, 772  # ARPHRD numbers
_UP, _RUNNING = 0x1, 0x40
_KINDS: Final = {
    "bond": InterfaceKind.BOND,
    "team": InterfaceKind.BOND,
    "vlan": InterfaceKind.VLAN,
    "macvlan": InterfaceKind.VLAN,
    "ipvlan": InterfaceKind.VLAN,
    "veth": InterfaceKind.VETH,
    "vxlan": InterfaceKind.TUNNEL,
    "geneve": InterfaceKind.TUNNEL,
    "gretap": InterfaceKind.TUNNEL,
    "ip6gretap": InterfaceKind.TUNNEL,
}
# Kinds of interfaces with a parent. The `lower` of a veth is its other end.
_STACKED: Final = ("vlan", "macvlan", "ipvlan", "ipoib")
_SPEED_MBPS_MAX: Final = 10_000_000
_DEPTH_MAX: Final = 4


class NetworkProbe:
    """Reader of this node's network. It queries the kernel only after a change notification, and
    parses the answer only if it is new. Thread-safe.
    """

    def __init__(
        self, address: str | None = None, interface: str | None = None, root: Path = Path("/")
    ) -> None:
        """`address` or `interface` is pinned by the configuration."""
        self._address = address
        self._interface = interface
        self._root = root
        self._seen: tuple[netlink.Messages, tuple[Interface, ...]] | None = None
        self._asking = threading.Lock()
        self._changes: socket.socket | None = None

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the interfaces that have an address or are pinned. Raises OSError."""
        with self._asking:
            if self._seen is not None and not self._changed():
                return self._seen[1]
            if self._changes is None:
                # Subscribe before the query, so that no later change is missed.
                self._subscribe()
            messages = netlink.ask()
            if self._seen is None or self._seen[0] != messages:
                found = interfaces_of(netlink.read(messages), self._root)
                self._seen = messages, pin(found, self._address, self._interface)
            return self._seen[1]

    def _changed(self) -> bool:
        return self._changes is None or netlink.has_changes(self._changes)

    def _subscribe(self) -> None:
        """Subscribe to changes. Without notifications, each call queries the kernel."""
        with contextlib.suppress(OSError):
            self._changes = netlink.subscribe()
            weakref.finalize(self, self._changes.close)


def pin(
    found: tuple[Interface, ...], address: str | None, interface: str | None
) -> tuple[Interface, ...]:
    """Mark the pinned interface. A pinned address becomes the only one of its interface.

    A pinned address on no interface is reported without one, because NAT may lead here. A pinned
    interface without addresses is reported as such; otherwise others would be used.
    """
    if address is None:
        if interface is not None and not any(one.name == interface for one in found):
            gone = Interface(interface, InterfaceKind.VIRTUAL, (), running=False)
            found = (*found[: INTERFACES_MAX - 1], gone)
        return tuple(
            msgspec.structs.replace(one, pinned=True) if one.name == interface else one
            for one in found
        )
    wanted = ipaddress.ip_address(address)
    for place, one in enumerate(found):
        for text in one.addresses:
            own = ipaddress.ip_interface(text)
            # All of 127.0.0.0/8 is local, whichever address the interface names.
            if own.ip == wanted or (wanted.is_loopback and wanted in own.network):
                alone = (f"{wanted}/{own.network.prefixlen}",)
                pinned = msgspec.structs.replace(one, addresses=alone, pinned=True)
                return (*found[:place], pinned, *found[place + 1 :])
    nowhere = Interface(
        "", InterfaceKind.VIRTUAL, (f"{wanted}/{wanted.max_prefixlen}",), pinned=True
    )
    return (*found[: INTERFACES_MAX - 1], nowhere)


def interfaces_of(network: NetworkSnapshot, root: Path = Path("/")) -> tuple[Interface, ...]:
    """Combine the kernel's links and addresses with the sysfs under `root`."""
    tree = FsRoot(root)
    by_index = {link.index: link for link in network.links}
    addresses: dict[int, list[str]] = {}
    for entry in sorted(network.addresses, key=lambda entry: entry.secondary):
        if usable_address(entry.address):
            addresses.setdefault(entry.index, []).append(entry.address)
    found = [
        _interface(by_index[index], by_index, tuple(own[:ADDRESSES_MAX]), tree)
        for index, own in sorted(addresses.items())
        if index in by_index and usable_name(by_index[index].name)
    ]
    # A container host may have hundreds of virtual interfaces.
    found.sort(key=lambda interface: interface.kind is InterfaceKind.VIRTUAL)
    return tuple(found[:INTERFACES_MAX])


def _interface(
    link: NetworkLink, links: dict[int, NetworkLink], addresses: tuple[str, ...], tree: FsRoot
) -> Interface:
    return Interface(
        name=link.name,
        kind=kind_of(link, links, tree),
        addresses=addresses,
        running=link.flags & (_UP | _RUNNING) == _UP | _RUNNING,
        rdma=_rdma(link, links, tree),
        mtu=link.mtu,
        speed_mbps=_speed(link, tree),
    )


def kind_of(link: NetworkLink, links: dict[int, NetworkLink], tree: FsRoot) -> InterfaceKind:
    """Return the kind of a link. `links` are all links of its namespace, by index."""
    if link.hardware_type == _LOOPBACK:
        return InterfaceKind.LOOPBACK
    if link.hardware_type == _INFINIBAND:
        return InterfaceKind.INFINIBAND
    if link.hardware_type != _ETHERNET:
        return InterfaceKind.TUNNEL
    if link.kind == "bridge":
        reaches = any(_reaches_out(port, links, tree) for port in _below(link, links))
        return InterfaceKind.BRIDGE if reaches else InterfaceKind.VIRTUAL
    if link.kind in _KINDS:
        return _KINDS[link.kind]
    hardware = not link.kind or _sysfs(link, tree, "device") is not None
    return InterfaceKind.ETHERNET if hardware else InterfaceKind.VIRTUAL


def _reaches_out(port: NetworkLink, links: dict[int, NetworkLink], tree: FsRoot) -> bool:
    """True if a bridge port leads off this machine. Ports of containers and virtual machines do
    not.
    """
    return kind_of(port, links, tree) in (
        InterfaceKind.ETHERNET,
        InterfaceKind.BOND,
        InterfaceKind.VLAN,
        InterfaceKind.TUNNEL,
    )


def _below(link: NetworkLink, links: dict[int, NetworkLink]) -> list[NetworkLink]:
    """Return the parents of an interface."""
    below = [other for other in links.values() if other.master == link.index]
    if link.kind in _STACKED and link.lower in links and link.lower != link.index:
        below.append(links[link.lower])
    return below


def _rdma(link: NetworkLink, links: dict[int, NetworkLink], tree: FsRoot, depth: int = 0) -> bool:
    if link.hardware_type == _INFINIBAND:
        return True
    device = _sysfs(link, tree, "device")
    if device is not None and tree.exists(f"{device}/infiniband"):
        return True
    return depth < _DEPTH_MAX and any(
        _rdma(other, links, tree, depth + 1) for other in _below(link, links)
    )


def _speed(link: NetworkLink, tree: FsRoot) -> int:
    """Return the speed in Mbit/s; 0 if the driver reports none."""
    path = _sysfs(link, tree, "speed")
    return 0 if path is None else (speed_at(tree, path) or 0)


def speed_at(tree: FsRoot, path: str) -> int | None:
    """Return the speed in Mbit/s from a `speed` file; None if the driver reports none."""
    speed = _integer(tree.text(path))
    return speed if speed is not None and 0 < speed <= _SPEED_MBPS_MAX else None


def _integer(text: str | Unread) -> int | None:
    try:
        return None if isinstance(text, Unread) else int(text)
    except ValueError:
        return None


def _sysfs(link: NetworkLink, tree: FsRoot, name: str) -> str | None:
    """Return a sysfs file of the interface, if it is this interface's: sysfs may show another
    namespace, in which another interface has its name.
    """
    folder = f"sys/class/net/{link.name}"
    if _integer(tree.text(f"{folder}/ifindex")) != link.index:
        return None
    path = f"{folder}/{name}"
    return path if tree.exists(path) else None
