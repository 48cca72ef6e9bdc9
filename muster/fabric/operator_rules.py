"""Operator's rules for a node's HCAs: which to use and which not."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

import msgspec

from muster.fabric.gids import Range
from muster.fabric.model import Hca


class Rules(msgspec.Struct, frozen=True):
    """Entries name an RDMA device (mlx5_0), one port of it (mlx5_0:1), a PCI address (0000:1a:00.0
    or 1a:00.0), a network interface, an IP address, or a network (10.0.0.0/16).

    With `include`, only matching ports are used. `exclude` overrides it.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def naming(entries: Iterable[str], hcas: Sequence[Hca]) -> str | None:
    """Return the first entry that matches one of these ports."""
    return next((entry for entry in entries if any(names(entry, hca) for hca in hcas)), None)


def networks(rules: Rules) -> tuple[Range, ...]:
    """Return the included networks if nothing else is included: then these addresses are meant, and
    no others of the same ports.
    """
    try:
        found = [ipaddress.ip_network(entry, strict=False) for entry in rules.include]
    except ValueError:
        return ()
    return tuple(found) if all(network.num_addresses > 1 for network in found) else ()


def single_range(within: Sequence[Range]) -> str:
    """Return the network for NCCL's setting; "" unless there is exactly one."""
    return str(within[0]) if len(within) == 1 else ""


def names(entry: str, hca: Hca) -> bool:
    """True if the entry matches this port."""
    if entry in (hca.name, hca.key) or entry in (*hca.netdevs, *hca.members):
        return True
    if hca.pci is not None and entry.lower() in (hca.pci, hca.pci.removeprefix("0000:")):
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return any(_inside(address, network) for address in hca.addresses)


def _inside(address: str, network: Range) -> bool:
    try:
        return ipaddress.ip_address(address.partition("/")[0]) in network
    except ValueError:
        return False
