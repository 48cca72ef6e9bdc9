"""Proves that the names of a host table lead to their addresses here, and the addresses back.

torch turns addresses into names and names into addresses, on each node by itself; what it will find
is what the resolver says, whatever a file says.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.protocol.hosts import Table

SETTLE_S: Final = 3.0
"""Caches (systemd-resolved looks at the file every 2 s) are given so long to see a new block."""
_PAUSE_S: Final = 0.1


class Resolver:
    """The machine's own, as every program meets it. May wait for a name server."""

    def addresses(self, name: str) -> list[str]:
        """In the order in which programs try them; none where the name is not known."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def name(self, address: str) -> str:
        """ "" where the address has none."""
        try:
            return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
        except (OSError, UnicodeError):
            return ""

    def is_ours(self, address: str) -> bool:
        """Whether it is one of this machine's."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except (OSError, UnicodeError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Findings:
    """Sentences: what must not be, and what is merely worth knowing."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def prove(
    table: Table,
    own: str,
    resolver: Resolver,
    pause: Callable[[float], None] = time.sleep,
    settle_s: float = SETTLE_S,
) -> Findings:
    """Look every name and address of the table up. `own` is this node's address in it."""
    waited_s = 0.0
    while True:
        findings = _look(table, own, resolver)
        if not findings.problems or waited_s >= settle_s:
            return findings
        pause(_PAUSE_S)
        waited_s += _PAUSE_S


def _look(table: Table, own: str, resolver: Resolver) -> Findings:
    problems: list[str] = []
    warnings: list[str] = []
    for name, address in table:
        found = resolver.addresses(name)
        if _holds(found, address):
            others = [other for other in found if not _same(other, address)]
            if others:
                warnings.append(f"the name {name} leads to {_listed(others)} as well as {address}")
        elif address == own and found and all(resolver.is_ours(other) for other in found):
            warnings.append(_of_own_name(name, found, address))
        else:
            leads = f"leads to {_listed(found)}" if found else "is not known"
            problems.append(f"the name {name} {leads} here, and its node is at {address}")
    for address in dict.fromkeys(address for _, address in table):
        names = [name for name, other in table if other == address]
        text = _wrong_way_back(address, names, resolver)
        if text and address != own:
            problems.append(text)
    return Findings(tuple(problems), tuple(warnings))


def _of_own_name(name: str, found: Sequence[str], address: str) -> str:
    text = f"this node's own name {name} leads to {_listed(found)} here, and not to {address}"
    if all(ipaddress.ip_address(other).is_loopback for other in found):
        text += (
            "; NCCL and gloo are told their interface and do not ask, other programs may: take "
            "the name off that line of the hosts file"
        )
    return text


def _wrong_way_back(address: str, names: Sequence[str], resolver: Resolver) -> str:
    """Another name than ours will do, where it leads to the same place."""
    found = resolver.name(address)
    if not found:
        return f"the address {address} of {names[0]} has no name here"
    if found.lower() in (name.lower() for name in names):
        return ""
    if _holds(resolver.addresses(found), address):
        return ""
    return f"the address {address} of {names[0]} is called {found} here, which leads elsewhere"


def _holds(found: Sequence[str], address: str) -> bool:
    return any(_same(other, address) for other in found)


def _same(one: str, other: str) -> bool:
    # A zone belongs to this machine and to no table.
    try:
        return ipaddress.ip_address(one.partition("%")[0]) == ipaddress.ip_address(other)
    except ValueError:
        return False


def _listed(addresses: Sequence[str]) -> str:
    more = f" and {len(addresses) - 3} more" if len(addresses) > 3 else ""
    return ", ".join(addresses[:3]) + more
