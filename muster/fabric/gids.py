"""GIDs: their addresses, and the entry of a RoCE port's table that NCCL chooses.

NCCL's rule is that of net_ib/connect.cc, the same from 2.21 to 2.30; earlier versions had no rule.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, Literal

from muster.fabric.model import Gid

Family = Literal["AF_INET", "AF_INET6"]

Range = ipaddress.IPv4Network | ipaddress.IPv6Network

ROCE_V1: Final = "IB/RoCE v1"
ROCE_V2: Final = "RoCE v2"

_WORD: Final = r"[0-9a-fA-F]{4}"
_GID: Final = re.compile(rf"{_WORD}(:{_WORD}){{7}}")
_LINK_LOCAL: Final = 0xFE80 << 48
EMPTY: Final = (":".join(["0000"] * 8), ":".join(["fe80", *["0000"] * 7]))
"""The kernel's text for an unused entry: all zero, or on InfiniBand only the subnet prefix."""
_MAPPED: Final = 0xFFFF


def number_of(gid: str) -> int | None:
    """Return the 128 bits of a GID in the kernel's notation; None if it is not one."""
    return int(gid.replace(":", ""), 16) if _GID.fullmatch(gid) else None


def is_empty(number: int) -> bool:
    """True if the entry is unused: all zero, or on InfiniBand only the subnet prefix."""
    return number & ((1 << 64) - 1) == 0 and number >> 64 in (0, _LINK_LOCAL)


def is_prefix_only(number: int) -> bool:
    """True if it has a subnet prefix and no port."""
    return number & ((1 << 64) - 1) == 0


def is_link_local(number: int) -> bool:
    """True if it is limited to its own network segment."""
    return number >> 64 == _LINK_LOCAL


def family_of(number: int) -> Family:
    """Return the family by NCCL's rule: IPv4 if mapped, also inside a multicast address; zero is
    IPv6.
    """
    top = number >> 32
    mapped = top == _MAPPED or top == (0xFF0E << 80 | _MAPPED)
    return "AF_INET" if mapped else "AF_INET6"


def address_of(number: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of a RoCE GID; None for an empty one."""
    if is_empty(number):
        return None
    if number >> 32 == _MAPPED:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return ipaddress.IPv6Address(number)


def is_routable(number: int) -> bool:
    """True if it reaches peers beyond the own segment. 169.254.0.0/16 does not, which an interface
    assigns itself without a DHCP server.
    """
    address = address_of(number)
    if address is None or is_link_local(number):
        return False
    return not (
        address.is_unspecified
        or address.is_multicast
        or address.is_loopback
        or (address.version == 4 and address.is_link_local)
    )


def version_of(kind: str | None) -> int | None:
    """Return 1 or 2 for an entry's type; None if the kernel does not report it."""
    if kind is None:
        return None
    if kind.startswith(ROCE_V2):
        return 2
    return 1 if kind.startswith((ROCE_V1, "RoCE v1")) else None


def routable(gids: Sequence[Gid], family: Family | None = None) -> list[Gid]:
    """Return the entries that reach a peer, of one family if given."""
    found = []
    for gid in gids:
        number = number_of(gid.gid)
        if number is None or not is_routable(number):
            continue
        if family is None or family_of(number) == family:
            found.append(gid)
    return found


def nccl_index(
    gids: Sequence[Gid],
    slots: int,
    family: Family = "AF_INET",
    within: Range | None = None,
) -> int:
    """Return the index that NCCL chooses itself (NCCL_IB_GID_INDEX=-1) in a table of `slots`
    entries.

    `within` is NCCL_IB_ADDR_RANGE. If nothing fits, the result is 0, whatever that entry is.
    """
    table = {gid.index: gid for gid in gids}
    numbers = {index: number_of(gid.gid) or 0 for index, gid in table.items()}
    chosen = 0
    # An empty entry counts as IPv6, and is chosen after an IPv4 entry: this matters for index 0
    # only.
    empty = family == "AF_INET6" and family_of(numbers.get(0, 0)) == "AF_INET"
    for candidate in range(slots) if empty else sorted(table):
        if not 0 < candidate < slots:
            continue
        number, before = numbers.get(candidate, 0), numbers.get(chosen, 0)
        if family_of(number) != family or not _inside(number, within):
            continue
        if family_of(before) != family:
            chosen = candidate
            continue
        if is_empty(number) or is_link_local(number):
            continue
        version = version_of(table[candidate].type)  # not empty, hence in the table
        known = table.get(chosen)
        differ = version != version_of(known.type if known is not None else None)
        unfit = is_empty(before) or is_link_local(before)
        if (differ or unfit) and version == 2:
            chosen = candidate
    return chosen


def fit_index(
    gids: Sequence[Gid], slots: int | None, family: Family, within: Sequence[Range] = ()
) -> int | None:
    """Return an index that reaches peers, with an address in one of the networks `within`, if any.
    Prefers NCCL's own choice, else the first fitting entry. NCCL then needs this index as a
    setting, or the network if there is exactly one.
    """
    if slots is None:
        return None
    network = within[0] if len(within) == 1 else None
    index = nccl_index(gids, slots, family, network)
    if any(gid.index == index for gid in _meant(gids, family, within)):
        return index
    return None if network is not None else min(fit_indexes(gids, family, within), default=None)


def strays(gids: Sequence[Gid], slots: int | None, family: Family, index: int | None) -> bool:
    """True if NCCL by itself chooses another entry than this one, if there is one."""
    return slots is not None and index not in (None, nccl_index(gids, slots, family))


def _inside(number: int, within: Range | None) -> bool:
    if within is None:
        return True
    address = address_of(number)
    return address is not None and address.version == within.version and address in within


def _meant(gids: Sequence[Gid], family: Family, within: Sequence[Range]) -> list[Gid]:
    found = routable(gids, family)
    if not within:
        return found
    return [gid for gid in found if any(_inside(number_of(gid.gid) or 0, one) for one in within)]


def fit_indexes(
    gids: Sequence[Gid], family: Family, within: Sequence[Range] = ()
) -> frozenset[int]:
    """Return all fitting entries: routable, of the family, and RoCE v2 if there are any. With
    several networks, entries in one of them; NCCL can be given a single one.
    """
    found = _meant(gids, family, within if len(within) > 1 else ())
    second = [gid for gid in found if version_of(gid.type) == 2]
    return frozenset(gid.index for gid in second or found)


def is_sparse(gids: Sequence[Gid]) -> bool:
    """True if an empty entry precedes a used one: in a container, the host's entries look empty."""
    used = {gid.index for gid in gids}
    return bool(used) and len(used) <= max(used)


def flid_index(gids: Sequence[Gid]) -> int:
    """Return the index on InfiniBand: 1 if that GID carries a routable FLID, else 0."""
    for gid in gids:
        number = number_of(gid.gid)
        if gid.index == 1 and number is not None and number >> 80 & 0xFFFF:
            return 1
    return 0
