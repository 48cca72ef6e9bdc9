"""Distinguish loopback from network addresses, and find the processes that listen on a port."""

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"


def is_loopback(host: str) -> bool:
    """True if traffic to `host`, an address or name, never leaves this machine.

    A name other than localhost counts as outside, because its address may change.
    """
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listeners(port: int, proc: Path = Path("/proc")) -> list[str]:
    """The visible processes that listen on a TCP port of this machine, as `python (process 42)`."""
    sockets = set(_listening(port, proc))
    if not sockets:
        return []
    return sorted(
        f"{_name_of(folder)} (process {folder.name})"
        for folder in proc.iterdir()
        if folder.name.isdecimal() and sockets & set(_sockets_of(folder))
    )


def _listening(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{words[9]}]"


def _sockets_of(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder / "fd")
    except OSError:
        return  # The process has ended, or is another user's.
    for name in names:
        try:
            yield os.readlink(folder / "fd" / name)
        except OSError:
            continue


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return "somebody"
