"""Finding TCP ports that a job can listen on, now and in a minute."""

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

# What is missing is not a port: what this node has to be given instead.
_CANNOT_LOOK: Final = {
    errno.EMFILE: "this agent has used up its file descriptors; raise its LimitNOFILE, or find out "
    "what holds them in /proc/PID/fd",
    errno.ENFILE: "this machine has used up its file descriptors; raise fs.file-max",
    errno.ENOBUFS: "the kernel has no memory left for sockets",
    errno.ENOMEM: "the kernel has no memory left for sockets",
}


# These files are told by one read or not at all; a list of ranges may be long.
_LINE_BYTES_MAX: Final = 1 << 16


class NoPortsError(DaemonError):
    """There are not enough; the text says which range was searched."""


def check_range(first: int, last: int, root: Path = Path("/")) -> int:
    """How many ports between `first` and `last` can be given to jobs at all, whoever has them now.

    Raises NoPortsError where there is none.
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

    Left out are `taken` and those from which the kernel takes the local ports of outgoing
    connections, since any program could be given one of those before the job binds it. The search
    starts anywhere, so that agents of one host do not all offer the same. Raises NoPortsError, also
    where this process cannot look: then nothing is known of any port.
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
        f"of the ports {first} to {last} only {len(found)} are free and outside the kernel's own "
        f"range {ephemeral}, and {count} are needed: "
        "widen `ports` in the agent's configuration"
    )


@dataclass(frozen=True, slots=True)
class _Ephemeral:
    """The kernel's own ports: its range (of IPv6, too) less those that it was told to leave."""

    own: range
    left: tuple[range, ...]

    def __contains__(self, port: int) -> bool:
        return port in self.own and not any(port in part for part in self.left)

    def __str__(self) -> str:
        """From its first to its last port."""
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
    """What stands in a file of the kernel's. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LINE_BYTES_MAX).decode()
    finally:
        os.close(fd)


def _can_bind(port: int) -> bool:
    """Under both address families, because torch listens on [::] and others on 0.0.0.0.

    A wildcard address without SO_REUSEADDR can be bound only where no address of the port is; that
    of IPv6 stands for both, and a node without IPv6 has nobody listening there.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            # Without SO_REUSEADDR: a port in TIME_WAIT is as good as taken.
            with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
                if family is socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind((address, port))
        except OSError as error:
            if error.errno in _CANNOT_LOOK:
                why = f"{os.strerror(error.errno)}: {_CANNOT_LOOK[error.errno]}"
                raise NoPortsError(f"no port can be looked for: {why}") from error
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                return False
        else:
            return True
    return True
