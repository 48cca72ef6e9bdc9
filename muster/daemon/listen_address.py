"""Addresses of this machine: loopback or network, all of them, and the listeners of a port."""

import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_NET: Final = Path("/proc/net")


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


def all_names(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return all host names and addresses of this machine, those that were given first."""
    hostname = socket.gethostname()
    names = [*given, hostname, hostname.partition(".")[0], socket.getfqdn(), "localhost"]
    addresses = [name for name in names if is_address(name)] + _addresses()
    hosts = [name for name in names if not is_address(name)]
    return list(dict.fromkeys(hosts)), list(dict.fromkeys(addresses))


def _addresses() -> list[str]:
    """Return the addresses of this machine's interfaces, without link-local ones."""
    fourth = re.findall(r"\|-- (\S+)\n +/32 host LOCAL", _text(_NET / "fib_trie"))
    sixth = [
        str(ipaddress.IPv6Address(int(line.split()[0], 16)))
        for line in _text(_NET / "if_inet6").splitlines()
    ]
    known = [each for each in (*fourth, *sixth) if not ipaddress.ip_address(each).is_link_local]
    return known or ["127.0.0.1"]


def _text(path: Path) -> str:
    """Return the text of a file; "" where the kernel has none, as without IPv6."""
    try:
        return path.read_text()
    except OSError:
        return ""


def own_address() -> str:
    """Return the address of the default route, or this machine's host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # for documentation: no packet is sent
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def is_address(text: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
