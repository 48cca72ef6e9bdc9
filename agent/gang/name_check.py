"""Proves that the names of a host table lead to their addresses here, and the addresses back.

torch turns addresses into names and names into addresses, on each node by itself; what it will find
is what the resolver says, whatever a file says.
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
"""Caches (systemd-resolved looks at the file every 2 s) are given so long to see a new block."""
_PAUSE_S: Final = 0.1
ASK_S: Final = 3.0
"""How long name servers are waited for before a table is written."""
_ASKERS: Final = 16


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


def look_before(
    table: Table,
    others: Others,
    own: str,
    resolver: Resolver,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Look the names of the table up before it is written: a name that leads to another machine
    than its node must not be taken away from that machine. `own` is this node's address in it.

    A name that nobody knows is free, and so is one without an answer: a hosts file is for machines
    without a name server, too.
    """
    until = clock() + SETTLE_S
    # Where a wildcard answers, every name leads to the same addresses, and none is taken.
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
        # A cache may still have what was there before.
        pause(_PAUSE_S)


def unanswered(names: int) -> Findings:
    """What is worth knowing of so many names that no name server has answered for."""
    if not names:
        return Findings()
    told = f"{count(names, 'name')} of the gang's nodes"
    return Findings((), (f"no name server has said in time whether {told} mean other machines",))


def _ask(names: Collection[str], resolver: Resolver) -> dict[str, list[str]]:
    """The addresses of each name; a name without an answer within ASK_S is missing. Name servers
    are asked for several names at a time."""
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
    """Where a name leads, if that is to none of the addresses of its node. Link-local addresses
    (of mDNS, LLMNR) belong to no machine in particular."""
    local = [address for address in found if _plain(address).is_link_local]
    known = [address for address in found if address not in local and not _holds(wild, address)]
    return [] if any(_holds(right, address) for address in known) else known


def _of_foreign_name(name: str, address: str, found: Sequence[str]) -> str:
    return (
        f"the name {name} leads to {_listed(found)} here already, and the node of that name is at "
        f"{address}: give the node another name (`node` in its agent.yaml), or correct what leads "
        "the name elsewhere (the hosts file, DNS)"
    )


def prove(
    table: Table,
    others: Others,
    own: str,
    resolver: Resolver,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Look every name and address of the table up. `own` is this node's address in it."""
    until = clock() + SETTLE_S
    while True:
        findings = _look(table, others, own, resolver)
        if not findings.problems or clock() >= until:
            return findings
        pause(_PAUSE_S)


def _look(table: Table, others: Others, own: str, resolver: Resolver) -> Findings:
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
        text = _wrong_way_back(address, names, resolver)
        if text and address != own:
            problems.append(text)
    return Findings(tuple(problems), tuple(warnings))


def _of_own_name(name: str, found: Sequence[str], address: str) -> str:
    text = f"this node's own name {name} leads to {_listed(found)} here, and is at {address}"
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


def _holds(found: Iterable[str], address: str) -> bool:
    return any(_plain(other) == _plain(address) for other in found)


def _plain(address: str) -> Address:
    # A zone belongs to this machine and to no table.
    return ipaddress.ip_address(address.partition("%")[0])


def _listed(addresses: Sequence[str]) -> str:
    return named(addresses, most=3)
