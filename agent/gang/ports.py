"""Find TCP ports that a job can listen on now and in a minute."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.daemon.errors import DaemonError

# Errors that mean a shortage on this node, not a missing port; with the remedy.
_CANNOT_LOOK: Final = {
    errno.EMFILE: "this agent has used up its file descriptors; raise its LimitNOFILE, or find out "
    "what holds them in /proc/PID/fd",
    errno.ENFILE: "this machine has used up its file descriptors; raise fs.file-max",
    errno.ENOBUFS: "the kernel has no memory left for sockets",
    errno.ENOMEM: "the kernel has no memory left for sockets",
}


# These files must be read in one go; a list of ranges may be long.
_LINE_BYTES_MAX: Final = 1 << 16


class NoPortsError(DaemonError):
    """Not enough free ports; the text names the searched range."""


def check_range(first: int, last: int, root: Path = Path("/")) -> int:
    """The number of ports between `first` and `last` that jobs can use at all, in use or not.

    Raises NoPortsError if there are none.
    """
    ephemeral = _ephemeral(root)
    usable = sum(1 for port in range(first, last + 1) if port not in ephemeral)
    if not usable:
        raise NoPortsError(
            f"ports: {first} to {last} lies within the kernel's own range "
            f"{ephemeral}, from which any program gets ports; name another one, or "
            "reserve it in net.ipv4.ip_local_reserved_ports"
        )
    return usable


def free_ports(
    count: int, first: int, last: int, taken: Collection[int] = (), root: Path = Path("/")
) -> tuple[int, ...]:
    """`count` ports between `first` and `last`, both included, on which nobody listens.

    Excludes `taken` and the kernel's range for local ports of outgoing connections, since any
    program could get one of those before the job binds it. The search starts at a random port, so
    that agents of one host do not all offer the same. Raises NoPortsError, also if this process
    cannot search.
    """
    if count <= 0:
        return ()
    ephemeral = _ephemeral(root)
    size = last - first + 1
    start = secrets.randbelow(size)
    found: list[int] = []
    for step in range(size):
        port = first + (start + step) % size
        if port in ephemeral or port in taken or not _can_bind(port):
            continue
        found.append(port)
        if len(found) == count:
            return tuple(found)
    raise NoPortsError(
        f"only {len(found)} of the ports {first} to {last} are free and outside the kernel's own "
        f"range {ephemeral}, and {count} are needed: "
        "widen `ports` in the agent's configuration"
    )


@dataclass(frozen=True, slots=True)
class _Ephemeral:
    """The kernel's ephemeral ports: its range (also for IPv6) minus the reserved ports."""

    own: range
    left: tuple[range, ...]

    def __contains__(self, port: int) -> bool:
        return port in self.own and not any(port in part for part in self.left)

    def __str__(self) -> str:
        """The first to the last port."""
        mine = [port for port in self.own if port in self]
        return f"{mine[0]} to {mine[-1]}" if mine else "(empty)"


def _ephemeral(root: Path) -> _Ephemeral:
    folder = os.path.join(root, "proc/sys/net/ipv4")
    try:
        low, high = _line(f"{folder}/ip_local_port_range").split()
        own = range(int(low), int(high) + 1)
    except (OSError, ValueError):
        own = range(32768, 61000)
    left = []
    try:
        for part in _line(f"{folder}/ip_local_reserved_ports").split(","):
            begin, _, end = part.strip().partition("-")
            if begin:
                left.append(range(int(begin), int(end or begin) + 1))
    except (OSError, ValueError):
        pass
    return _Ephemeral(own, tuple(left))


def _line(path: str) -> str:
    """The content of a kernel file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LINE_BYTES_MAX).decode()
    finally:
        os.close(fd)


def _can_bind(port: int) -> bool:
    """True if the port can be bound for both address families: torch listens on [::], others on
    0.0.0.0.

    Without SO_REUSEADDR a wildcard address can be bound only if no address of the port is bound.
    The IPv6 wildcard covers both families; without IPv6 the node has no IPv6 listeners.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            # Without SO_REUSEADDR, because a port in TIME_WAIT counts as taken.
            with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
                if family is socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind((address, port))
        except OSError as error:
            if error.errno in _CANNOT_LOOK:
                why = f"{os.strerror(error.errno)}: {_CANNOT_LOOK[error.errno]}"
                raise NoPortsError(f"cannot look for a port: {why}") from error
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                return False
        else:
            return True
    return True
