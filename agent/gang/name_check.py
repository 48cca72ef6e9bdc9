"""Verify that the names of a hosts table resolve to their addresses here, and the addresses back.

On each node torch resolves addresses to names and names to addresses. It gets what the resolver
returns, whatever a file contains.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.protocol.hosts_file import Address, Others, Table
from muster.protocol.text import count, named

SETTLE_S: Final = 3.0
"""Time for caches to see a new block (systemd-resolved checks the file every 2 s)."""
_PAUSE_S: Final = 0.1
ASK_S: Final = 3.0
"""Time to wait for name servers before a table is written."""
_ASKERS: Final = 16


class Resolver:
    """The machine's own resolver, as every program uses it. May wait for a name server."""

    def addresses(self, name: str) -> list[str]:
        """The addresses of a name in the order in which programs try them; [] if the name is
        unknown."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def name(self, address: str) -> str:
        """The name of an address, or "" if it has none."""
        try:
            return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
        except (OSError, UnicodeError):
            return ""

    def is_ours(self, address: str) -> bool:
        """True if the address is one of this machine's."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except (OSError, UnicodeError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Findings:
    """Problems, which prevent the start, and warnings; each is a sentence."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_before_write(
    table: Table,
    others: Others,
    own: str,
    resolver: Resolver,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Resolve the names of the table before it is written. If a name already leads to another
    machine, the table must not take it from that machine. `own` is this node's address in the
    table.

    An unknown name is free, and so is a name without an answer: hosts files also serve machines
    without a name server.
    """
    until = clock() + SETTLE_S
    # If a wildcard answers, every name resolves to the same addresses, and no name is taken.
    anything = f"muster-{secrets.token_hex(8)}"
    while True:
        answers = _ask([anything, *(name for name, _ in table)], resolver)
        wild = answers.get(anything, [])
        problems = {
            name: _of_foreign_name(name, address, found)
            for name, address in table
            if (
                found := _elsewhere(
                    answers.get(name, []), wild, (address, *others.get(address, ()))
                )
            )
            and not (address == own and all(resolver.is_ours(other) for other in found))
        }
        missing = sum(name not in answers for name, _ in table)
        if not problems or clock() >= until:
            return Findings(tuple(problems.values()), unanswered(missing).warnings)
        # A cache may still have the old entries.
        pause(_PAUSE_S)


def unanswered(names: int) -> Findings:
    """A warning about `names` names for which no name server has answered."""
    if not names:
        return Findings()
    those = f"{count(names, 'name')} of the gang's nodes"
    return Findings(
        (), (f"no name server has answered in time whether {those} mean other machines",)
    )


def _ask(names: Collection[str], resolver: Resolver) -> dict[str, list[str]]:
    """The addresses of each name; a name without an answer within ASK_S is missing. Several names
    are resolved at a time."""
    todo, answers = deque(names), dict[str, list[str]]()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                name = todo.popleft()
                answers[name] = resolver.addresses(name)

    threads = [
        threading.Thread(target=work, name="hosts.ask", daemon=True)
        for _ in range(min(_ASKERS, len(names)))
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + ASK_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    todo.clear()
    return dict(answers)


def _elsewhere(found: Sequence[str], wild: Sequence[str], right: Sequence[str]) -> list[str]:
    """The addresses to which a name leads, if none of them is an address of its node. Link-local
    addresses (of mDNS, LLMNR) belong to no machine in particular."""
    local = [address for address in found if _plain(address).is_link_local]
    known = [address for address in found if address not in local and not _holds(wild, address)]
    return [] if any(_holds(right, address) for address in known) else known


def _of_foreign_name(name: str, address: str, found: Sequence[str]) -> str:
    return (
        f"the name {name} leads to {_listed(found)} here already, and the node of that name is at "
        f"{address}: give the node another name (`node` in its agent.yaml), or correct what leads "
        "the name elsewhere (the hosts file, DNS)"
    )


def check_names(
    table: Table,
    others: Others,
    own: str,
    resolver: Resolver,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Resolve every name and address of the table. `own` is this node's address in it."""
    until = clock() + SETTLE_S
    while True:
        findings = _check_once(table, others, own, resolver)
        if not findings.problems or clock() >= until:
            return findings
        pause(_PAUSE_S)


def _check_once(table: Table, others: Others, own: str, resolver: Resolver) -> Findings:
    problems: list[str] = []
    warnings: list[str] = []
    for name, address in table:
        found = resolver.addresses(name)
        strange = []
        if found != [address]:
            right = (address, *others.get(address, ()))
            strange = [other for other in found if not _holds(right, other)]
        if not found:
            problems.append(f"the name {name} of {address} is not known here")
        elif not strange:
            if not _holds(found, address):
                warnings.append(
                    f"the name {name} leads to {_listed(found)} here and not to {address}: its "
                    "node has both"
                )
        elif address == own and all(resolver.is_ours(other) for other in strange):
            warnings.append(_of_own_name(name, strange, address))
        elif strange[0] != found[0]:
            warnings.append(f"the name {name} leads to {_listed(strange)} as well as {address}")
        else:
            problems.append(
                f"the name {name} leads to {_listed(found)} here, and its node is at {address}"
            )
    by_address: dict[str, list[str]] = {}
    for name, address in table:
        by_address.setdefault(address, []).append(name)
    for address, names in by_address.items():
        text = _reverse_lookup_problem(address, names, resolver)
        if text and address != own:
            problems.append(text)
    return Findings(tuple(problems), tuple(warnings))


def _of_own_name(name: str, found: Sequence[str], address: str) -> str:
    text = f"this node's own name {name} leads to {_listed(found)} here, and is at {address}"
    if all(ipaddress.ip_address(other).is_loopback for other in found):
        text += (
            "; NCCL and gloo do not need it, but other programs may: remove the name from that "
            "line of the hosts file"
        )
    return text


def _reverse_lookup_problem(address: str, names: Sequence[str], resolver: Resolver) -> str:
    """A problem text if the address resolves to a name that leads elsewhere. A name other than ours
    is fine if it leads to the same address."""
    found = resolver.name(address)
    if not found:
        return f"the address {address} of {names[0]} has no name here"
    if found.lower() in (name.lower() for name in names):
        return ""
    if _holds(resolver.addresses(found), address):
        return ""
    return f"the address {address} of {names[0]} is called {found} here, which leads elsewhere"


def _holds(found: Iterable[str], address: str) -> bool:
    return any(_plain(other) == _plain(address) for other in found)


def _plain(address: str) -> Address:
    # A zone is local to this machine and never in a table.
    return ipaddress.ip_address(address.partition("%")[0])


def _listed(addresses: Sequence[str]) -> str:
    return named(addresses, most=3)
