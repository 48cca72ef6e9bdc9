"""Finding TCP ports that a job can listen on, now and in a minute."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Collection
from pathlib import Path

from muster.daemon.errors import DaemonError


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
            f"{_written(ephemeral)}, from which any program gets ports; name another one, or "
            "reserve it in net.ipv4.ip_local_reserved_ports"
        )
    return usable


def free_ports(
    count: int, first: int, last: int, taken: Collection[int] = (), root: Path = Path("/")
) -> tuple[int, ...]:
    """`count` ports between `first` and `last`, both included, on which nobody listens.

    Left out are `taken` and those from which the kernel takes the local ports of outgoing
    connections, since any program could be given one of those before the job binds it. The search
    starts anywhere, so that agents of one host do not all offer the same. Raises NoPortsError.
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
        f"range {_written(ephemeral)}, and {count} are needed: "
        "widen `ports` in the agent's configuration"
    )


def _ephemeral(root: Path) -> frozenset[int]:
    """The kernel's own ports: its range (of IPv6, too) less those that it was told to leave."""
    folder = root / "proc/sys/net/ipv4"
    try:
        low, high = (folder / "ip_local_port_range").read_text().split()
        own = set(range(int(low), int(high) + 1))
    except (OSError, ValueError):
        own = set(range(32768, 61000))
    try:
        for part in (folder / "ip_local_reserved_ports").read_text().split(","):
            begin, _, end = part.strip().partition("-")
            if begin:
                own -= set(range(int(begin), int(end or begin) + 1))
    except (OSError, ValueError):
        pass
    return frozenset(own)


def _written(ports: frozenset[int]) -> str:
    return f"{min(ports)} to {max(ports)}" if ports else "(empty)"


def _can_bind(port: int) -> bool:
    """Under both address families, because torch listens on [::] and others on 0.0.0.0.

    A wildcard address without SO_REUSEADDR can be bound only where no address of the port is.
    """
    return _binds(socket.AF_INET, "0.0.0.0", port) and _binds(socket.AF_INET6, "::", port)  # noqa: S104


def _binds(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        # Without SO_REUSEADDR: a port in TIME_WAIT is as good as taken.
        with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, port))
    except OSError as error:
        # A node without IPv6 has nobody listening there.
        return error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
    return True
