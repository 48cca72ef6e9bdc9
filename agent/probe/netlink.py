"""Links and addresses of this network namespace, read through netlink, without any tool.

sysfs shows the namespace in which it was mounted, which may be another one.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_NEWLINK, _GETLINK, _NEWADDR, _GETADDR = 16, 18, 20, 22
_ERROR, _DONE = 2, 3
_DUMP: Final = 0x301  # request, root, match
_INTERRUPTED: Final = 0x10
_TRIES: Final = 5
_HEADER: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NUMBER: Final = struct.Struct("=I")
_TYPE_MASK: Final = 0x3FFF
_CHANGES: Final = 0x001 | 0x010 | 0x100  # groups for links, IPv4 and IPv6 addresses
# Attributes of a link, and of an address.
_IFNAME, _MTU, _LOWER, _MASTER, _LINKINFO, _EXT_MASK, _PEER_NETNS = 3, 4, 5, 10, 18, 29, 37
_INFO_KIND: Final = 1
_SKIP_STATISTICS: Final = 8
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
# Address flags: not usable yet or no longer, or a temporary one that may change any day.
_TENTATIVE, _DEPRECATED, _DAD_FAILED = 0x40, 0x20, 0x08
_SECONDARY_OR_TEMPORARY: Final = 0x01


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """An interface. `hardware_type` is the kernel's ARPHRD number, `kind` the driver's kind ("" for
    most hardware). `lower` is the index of its parent, `master` that of its bond or bridge.
    """

    index: int
    name: str
    hardware_type: int
    flags: int
    kind: str = ""
    mtu: int = 0
    lower: int = 0
    master: int = 0


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """An address, like 10.0.0.5/16, and the index of its interface."""

    index: int
    address: str
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class NetworkSnapshot:
    """All interfaces of this namespace."""

    links: tuple[NetworkLink, ...]
    addresses: tuple[LinkAddress, ...]


def subscribe() -> socket.socket:
    """Return a socket that becomes readable when a link or an address changes. Raises OSError."""
    sock = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        socket.NETLINK_ROUTE,
    )
    try:
        sock.bind((0, _CHANGES))
    except BaseException:
        sock.close()
        raise
    return sock


def has_changes(sock: socket.socket) -> bool:
    """True if a subscription has received a change since the last call."""
    heard = False
    while True:
        try:
            heard = bool(sock.recv(1 << 16)) or heard
        except BlockingIOError:
            return heard
        except OSError:
            # The socket's buffer has overflowed.
            return True


Messages = tuple[tuple[int, bytes], ...]


def ask() -> Messages:
    """Return the kernel's answer, unparsed; equal while nothing changes. Raises OSError."""
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as sock:
        links = _dump(
            sock,
            _GETLINK,
            _LINK.pack(0, 0, 0, 0, 0)
            + _ATTRIBUTE.pack(8, _EXT_MASK)
            + _NUMBER.pack(_SKIP_STATISTICS),
        )
        addresses = _dump(sock, _GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0))
    return (*links, *addresses)


def read(messages: Messages) -> NetworkSnapshot:
    """Parse the kernel's answer."""
    return NetworkSnapshot(
        tuple(_link(body) for kind, body in messages if kind == _NEWLINK),
        tuple(
            address
            for kind, body in messages
            if kind == _NEWADDR and (address := _address(body)) is not None
        ),
    )


def _dump(sock: socket.socket, kind: int, body: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for _ in range(_TRIES):
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, _DUMP, 1, 0) + body)
        found, whole = _answer(sock)
        if whole:
            break
    return found


def _answer(sock: socket.socket) -> tuple[list[tuple[int, bytes]], bool]:
    """Return all messages of a dump, and whether nothing changed meanwhile."""
    found: list[tuple[int, bytes]] = []
    whole = True
    while True:
        data = sock.recv(1 << 17)
        at = 0
        while at < len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
            whole = whole and not flags & _INTERRUPTED
            body = data[at + _HEADER.size : at + length]
            if kind == _DONE:
                return found, whole
            if kind == _ERROR:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, "the kernel does not list its network interfaces")
            found.append((kind, body))
            at += (length + 3) & ~3


def _link(body: bytes) -> NetworkLink:
    _, hardware_type, index, flags, _ = _LINK.unpack_from(body)
    found = dict(_attributes(body, _LINK.size))
    info = dict(_attributes(found.get(_LINKINFO, b""), 0))
    lower = 0 if _PEER_NETNS in found else _number(found.get(_LOWER))
    return NetworkLink(
        index=index,
        name=_text(found.get(_IFNAME, b"")),
        hardware_type=hardware_type,
        flags=flags,
        kind=_text(info.get(_INFO_KIND, b"")),
        mtu=_number(found.get(_MTU)),
        lower=lower,
        master=_number(found.get(_MASTER)),
    )


def _address(body: bytes) -> LinkAddress | None:
    family, prefix, flags, _, index = _ADDRESS.unpack_from(body)
    found = dict(_attributes(body, _ADDRESS.size))
    flags |= _number(found.get(_IFA_FLAGS))
    # For a tunnel, IFA_ADDRESS is the address of the other end.
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if raw is None or flags & (_TENTATIVE | _DEPRECATED | _DAD_FAILED):
        return None
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address = ipaddress.ip_address(raw)
    return LinkAddress(index, f"{address}/{prefix}", bool(flags & _SECONDARY_OR_TEMPORARY))


def _attributes(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _number(raw: bytes | None) -> int:
    return int(_NUMBER.unpack_from(raw)[0]) if raw else 0


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
