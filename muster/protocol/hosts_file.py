"""Host table of a gang: valid names, and its representation in a hosts file.

A hosts file is bytes, and foreign lines are kept byte for byte. Every line of a block is marked as
ours by itself. So neither a lost marker nor a line inserted between two of ours makes a foreign
line look like ours.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

Table = Sequence[tuple[str, str]]
"""Pairs of a name and an IP address, in node-rank order. An address can have several names."""

Others = Mapping[str, Collection[str]]
"""Further addresses of a node, by its address in the table."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAME_CHARS_MAX: Final = 253
# Names in a hosts file are case-insensitive. An underscore is invalid in a host name, but common.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_LOCAL: Final = re.compile(r"(.*\.)?localhost(\..*)?|ip6-.*|broadcasthost", re.IGNORECASE)

_LEASE: Final = rb"([1-9][0-9]{0,17}\.[1-9][0-9]{0,8})"
_BEGIN: Final = re.compile(rb"# BEGIN muster " + _LEASE + rb" \(by muster-agent[^\n]*\)\r?\n?")
_END: Final = re.compile(rb"# END muster " + _LEASE + rb"\r?\n?")
_ENTRY: Final = re.compile(
    rb"([0-9a-f.:]+)\t([A-Za-z0-9._-]+(?: [A-Za-z0-9._-]+)*)\t# muster " + _LEASE + rb"\r?\n?"
)
_NO_END: Final = b"; the line before it had no end"


class BadHost(ValueError):
    """A name or an address that must not get into a hosts file. The message names it and the
    reason.
    """


def check_name(text: str) -> None:
    """Check that a hosts file can contain the name, and that it has no fixed meaning already.
    Raises BadHost.
    """
    labels = text.split(".")
    if len(text) > NAME_CHARS_MAX or not all(_NAME.fullmatch(label) for label in labels):
        raise BadHost(
            f"{text[:80]!r} is not a usable host name: letters, digits, '-' and '_' in parts of at "
            "most 63 characters joined by '.'"
        )
    if _LOCAL.fullmatch(text):
        raise BadHost(f"{text!r} means this machine on every machine")
    if labels[-1].isdecimal():
        raise BadHost(f"{text!r} would be read as an address")


def usable_name(text: str) -> bool:
    """True if `check_name` accepts it."""
    try:
        check_name(text)
    except BadHost:
        return False
    return True


def breaks_line(text: str) -> bool:
    """True if the text could end a line or a word of a hosts file, or begin a comment."""
    return not text.isascii() or not text.isprintable() or " " in text or "#" in text


def check_address(text: str) -> Address:
    """Parse the address of one machine, without a zone. Raises BadHost."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise BadHost(f"{text[:80]!r} is not an IPv4 or IPv6 address") from None
    zoned = isinstance(address, ipaddress.IPv6Address) and (
        address.is_link_local or address.scope_id is not None
    )
    if address.is_unspecified or address.is_multicast or zoned:
        raise BadHost(f"{text[:80]!r} is not an address that peers can reach")
    return address


def usable_address(text: str) -> bool:
    """True if `check_address` accepts it."""
    try:
        check_address(text)
    except BadHost:
        return False
    return True


def table_problems(table: Table) -> list[str]:
    """Return all problems of a host table, one sentence each."""
    problems: list[str] = []
    known: dict[str, str] = {}
    for name, address in table:
        try:
            check_name(name)
            check_address(address)
        except BadHost as error:
            problems.append(str(error))
            continue
        other = known.setdefault(name.lower(), address)
        if other != address:
            problems.append(f"{name!r} has the addresses {other} and {address}")
    return problems


class Parts(msgspec.Struct, frozen=True):
    """A parsed hosts file: `foreign` are the lines that are not ours, `entries` the lines of each
    lease, in file order.
    """

    foreign: bytes
    entries: dict[str, list[tuple[str, tuple[str, ...]]]]


def parse(text: bytes) -> Parts:
    """Separate our lines from foreign ones. Any line that does not match exactly is foreign."""
    foreign: list[bytes] = []
    entries: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    added_end = False  # the newline before the block is ours
    for line in _lines(text):
        if (begin := _BEGIN.fullmatch(line)) is not None:
            entries.setdefault(begin[1].decode(), [])
            added_end = added_end or _NO_END in line
        elif (entry := _ENTRY.fullmatch(line)) is not None:
            names = tuple(entry[2].decode().split(" "))
            entries.setdefault(entry[3].decode(), []).append((entry[1].decode(), names))
        elif (end := _END.fullmatch(line)) is not None:
            entries.setdefault(end[1].decode(), [])
        else:
            # A line added since needs that newline.
            added_end = False
            foreign.append(line)
    if added_end and foreign and foreign[-1].endswith(b"\n"):
        foreign[-1] = foreign[-1][:-1]
    return Parts(b"".join(foreign), entries)


def with_block(text: bytes, lease: str, table: Table) -> bytes:
    """Return `text` with the block of `lease`, replacing an earlier one of that lease. Blocks are
    at the end, so that the machine owner's lines come first and keep their meaning.
    """
    parts = parse(text)
    entries = {name: lines for name, lines in parts.entries.items() if name != lease}
    return _render(Parts(parts.foreign, {**entries, lease: _grouped(table)}))


def without_blocks(text: bytes, alive: Collection[str]) -> bytes:
    """Return `text` without the blocks of leases that are not `alive`."""
    parts = parse(text)
    kept = {lease: lines for lease, lines in parts.entries.items() if lease in alive}
    if len(kept) == len(parts.entries):
        return text
    return _render(Parts(parts.foreign, kept))


def merge(base: bytes, theirs: bytes, mine: bytes) -> bytes:
    """Return `mine` with another writer's changes to `base`: added and removed lines. Our blocks
    are those of `mine`.
    """
    parts = parse(mine)
    old, new = parse(base).foreign, parse(theirs).foreign
    if parts.foreign == old:
        return _render(Parts(new, parts.entries))
    if new in (old, parts.foreign):
        return mine
    was, they, we = (_lines(_ended(part)) for part in (old, new, parts.foreign))
    # A line that both have added is added once, so that merging again changes nothing.
    added = (Counter(they) - Counter(was)) - (Counter(we) - Counter(was))
    removed = Counter(was) - Counter(they)
    kept = [line for line in we if not _taken(removed, line)]
    fresh = [line for line in they if _taken(added, line)]
    return _render(Parts(b"".join([*kept, *fresh]), parts.entries))


class Conflict(msgspec.Struct, frozen=True):
    """A name of a table that leads elsewhere: in line `line` (from 1) of the file, or, if `lease`
    is set, in the block of another attempt.
    """

    name: str
    found: str
    wanted: str
    line: int = 0
    lease: str = ""


def conflicts(text: bytes, lease: str, table: Table, others: Others) -> list[Conflict]:
    """Return the names of the table that lead to another node. A name with several addresses is
    fine if one is right, or is one of `others`.
    """
    wanted = {name.lower(): (name, address) for name, address in table}
    found: list[Conflict] = []
    for name, lines in _by_name(_foreign_lines(text)).items():
        if name in wanted:
            shown, address = wanted[name]
            if not any(_same(other, address) for _, other in lines):
                found += [
                    Conflict(shown, other, address, line=at)
                    for at, other in lines
                    if not _among(other, others.get(address, ()))
                ]
    for other_lease, entries in parse(text).entries.items():
        if other_lease == lease:
            continue
        for other, names in entries:
            for name in names:
                shown, address = wanted.get(name.lower(), (name, other))
                if not _among(other, (address, *others.get(address, ()))):
                    found.append(Conflict(shown, other, address, lease=other_lease))
    return found


def without_names(text: bytes, names: Iterable[str]) -> bytes:
    """Return `text` without these names, for a copy that only one job sees."""
    unwanted = {name.lower().encode() for name in names}
    kept = []
    for line in _lines(text):
        words = line.partition(b"#")[0].split()
        others = [word for word in words[1:] if word.lower() not in unwanted]
        if len(others) == len(words[1:]):
            kept.append(line)
        elif others:
            kept.append(b"\t".join([words[0], b" ".join(others)]) + b"\n")
    return b"".join(kept)


def _render(parts: Parts) -> bytes:
    """Return the foreign bytes, then the blocks."""
    rendered = [parts.foreign]
    note = b""
    if parts.entries and parts.foreign and not parts.foreign.endswith(b"\n"):
        rendered.append(b"\n")
        note = _NO_END
    for lease, entries in parts.entries.items():
        rendered.append(_block(lease, entries, note))
        note = b""
    return b"".join(rendered)


def _block(lease: str, entries: Iterable[tuple[str, tuple[str, ...]]], note: bytes) -> bytes:
    job, _, attempt = lease.partition(".")
    who = f"by muster-agent: the nodes of job {job}, attempt {attempt}, until it ends"
    lines = [f"{address}\t{' '.join(names)}\t# muster {lease}\n" for address, names in entries]
    return b"".join(
        [
            f"# BEGIN muster {lease} ({who}".encode() + note + b")\n",
            *(line.encode() for line in lines),
            f"# END muster {lease}\n".encode(),
        ]
    )


def _grouped(table: Table) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names by address, in order. Raises BadHost: no other text gets into a file."""
    problems = table_problems(table)
    if problems:
        raise BadHost("; ".join(problems))
    found: dict[str, list[str]] = {}
    for name, address in table:
        names = found.setdefault(str(check_address(address)), [])
        if name not in names:
            names.append(name)
    return [(address, tuple(names)) for address, names in found.items()]


def _lines(text: bytes) -> list[bytes]:
    """Split into lines with their ends. Only a newline ends a line, as for the C library."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _ended(text: bytes) -> bytes:
    return text + b"\n" if text and not text.endswith(b"\n") else text


def _taken(counter: Counter[bytes], line: bytes) -> bool:
    if counter[line] <= 0:
        return False
    counter[line] -= 1
    return True


def _foreign_lines(text: bytes) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, address and names of the foreign lines with content."""
    for number, line in enumerate(_lines(text), 1):
        if _ENTRY.fullmatch(line) is not None:
            continue
        words = line.partition(b"#")[0].decode(errors="replace").split()
        if len(words) > 1:
            yield number, words[0], words[1:]


def _by_name(
    lines: Iterable[tuple[int, str, list[str]]],
) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for number, address, names in lines:
        for name in names:
            found.setdefault(name.lower(), []).append((number, address))
    return found


def _same(one: str, other: str) -> bool:
    return _parsed(one) == ipaddress.ip_address(other)


def _among(one: str, others: Iterable[str]) -> bool:
    return any(_same(one, other) for other in others)


def _parsed(address: str) -> Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
