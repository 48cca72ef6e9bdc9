"""Byte counts of TCP sockets from the kernel's socket diagnostics, whichever process has them open.

One dump each for IPv4 and IPv6 returns all connected sockets of this network namespace.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR: Final = 2
_DONE: Final = 3
_ESTABLISHED: Final = 1 << 1
_INFO: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_PORTS: Final = struct.Struct("!HH")
_INODE: Final = struct.Struct("=I")
_COUNTS: Final = struct.Struct("=QQ")
_MESSAGE_BYTES: Final = 72
_INODE_AT: Final = 68
_COUNTS_AT: Final = 120  # tcpi_bytes_acked, tcpi_bytes_received, since Linux 4.1
_READ_BYTES: Final = 1 << 18
_WAIT_S: Final = 1.0

_log = structlog.get_logger("agent.hangs")


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """`bytes`: acknowledged by the peer plus received, since the connection was opened."""

    ports: tuple[int, int]
    bytes: int


def connections() -> dict[int, TcpConnection] | None:
    """All TCP connections by the inode of their socket. Returns None if the kernel does not report
    them."""
    found: dict[int, TcpConnection] = {}
    try:
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        with socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG) as link:
            link.settimeout(_WAIT_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                link.send(_request(family))
                for message in _answers(link):
                    _take(message, found)
    except (OSError, struct.error) as error:
        _log.debug("sockets_not_read", why=str(error))
        return None
    return found


def _request(family: int) -> bytes:
    wanted = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    body = wanted + bytes(48)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body


def _answers(link: socket.socket) -> Iterator[bytes]:
    while True:
        data = link.recv(_READ_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def _take(message: bytes, found: dict[int, TcpConnection]) -> None:
    if len(message) < _MESSAGE_BYTES:
        return
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTS_AT + _COUNTS.size:
            acked, received = _COUNTS.unpack_from(message, at + _ATTRIBUTE.size + _COUNTS_AT)
            (inode,) = _INODE.unpack_from(message, _INODE_AT)
            near, far = _PORTS.unpack_from(message, 4)
            found[inode] = TcpConnection((near, far), acked + received)
        at += (length + 3) & ~3
