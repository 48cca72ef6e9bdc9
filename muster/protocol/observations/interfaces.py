"""Network interfaces of a node, as reported by its agent."""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import Final

import msgspec

INTERFACES_MAX: Final = 64
ADDRESSES_MAX: Final = 16

# Names that the kernel allows, without separators of NCCL's and gloo's variables.
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
_PREFIX: Final = re.compile(r"/[0-9]{1,3}")


class InterfaceKind(enum.Enum):
    """Kind of an interface.

    BRIDGE: has a hardware port, hence a network. VIRTUAL: local to the machine, like the bridges of
    docker and libvirt. VETH: a container's uplink. VLAN: any share of another interface.
    """

    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"
    BOND = "bond"
    VLAN = "vlan"
    BRIDGE = "bridge"
    VETH = "veth"
    TUNNEL = "tunnel"
    VIRTUAL = "virtual"
    LOOPBACK = "loopback"


class NetworkRank(enum.IntEnum):
    """Suitability of a network for a gang; lower is better. NEVER: unsuitable."""

    INFINIBAND = 0
    ROCE = 1
    ETHERNET = 2
    VETH = 3
    TUNNEL = 4
    NEVER = 5


_RANKS: Final = {
    InterfaceKind.INFINIBAND: NetworkRank.INFINIBAND,
    InterfaceKind.ETHERNET: NetworkRank.ETHERNET,
    InterfaceKind.BOND: NetworkRank.ETHERNET,
    InterfaceKind.VLAN: NetworkRank.ETHERNET,
    InterfaceKind.BRIDGE: NetworkRank.ETHERNET,
    InterfaceKind.VETH: NetworkRank.VETH,
    InterfaceKind.TUNNEL: NetworkRank.TUNNEL,
    InterfaceKind.VIRTUAL: NetworkRank.NEVER,
    InterfaceKind.LOOPBACK: NetworkRank.NEVER,
}


def rank_of(kind: InterfaceKind, *, rdma: bool) -> NetworkRank:
    """Return the rank of an interface's network. `rdma`: an RDMA device is behind it."""
    rank = _RANKS[kind]
    return NetworkRank.ROCE if rdma and rank is NetworkRank.ETHERNET else rank


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """An interface with an address.

    `addresses` have their prefix length (10.0.0.5/16), primary ones first, without link-local ones.
    `rdma`: an RDMA device is behind it. `speed_mbps` is 0 if unknown. `pinned`: the node's
    configuration selects it.
    """

    name: str
    kind: InterfaceKind
    addresses: tuple[str, ...]
    running: bool = True
    rdma: bool = False
    mtu: int = 0
    speed_mbps: int = 0
    pinned: bool = False


def problem(interfaces: tuple[Interface, ...]) -> str | None:
    """Return why a report is invalid, as a sentence without its end; None if it is valid.

    Names and addresses end up in environments and in hosts files.
    """
    if len(interfaces) > INTERFACES_MAX:
        return f"{len(interfaces)} interfaces are more than {INTERFACES_MAX}"
    for interface in interfaces:
        if not usable_name(interface.name) and not (interface.pinned and not interface.name):
            return f"{interface.name[:40]!r} is not the name of an interface"
        if len(interface.addresses) > ADDRESSES_MAX:
            return f"{interface.name} has more than {ADDRESSES_MAX} addresses"
        for address in interface.addresses:
            if not usable_address(address):
                return f"{interface.name} has {address[:60]!r}, which peers cannot reach"
    return None


def usable_name(name: str) -> bool:
    """True if the text may name an interface in an environment variable."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def usable_address(text: str) -> bool:
    """True if the text is an address with a prefix length that a peer could connect to."""
    try:
        found = ipaddress.ip_interface(text)
    except ValueError:
        return False
    if _PREFIX.fullmatch(text[text.find("/") :]) is None or "%" in text:
        return False
    return not (found.ip.is_unspecified or found.ip.is_multicast or found.ip.is_link_local)


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Address of a node in a gang; `interface` is "" if no interface has the address."""

    node: str
    address: str
    interface: str = ""


def host_port(address: str, port: int) -> str:
    """Join as in a URL: an IPv6 address stands in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
