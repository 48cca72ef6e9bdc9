"""Comparison of RDMA ports: the first difference of two, and descriptions of their values."""

from __future__ import annotations

from typing import Final

from muster.fabric.gids import Family
from muster.fabric.model import ETHERNET
from muster.protocol.observations.fabric import FabricPort, PortGids
from orchestrator.core.model.fabric_plan import Rail

COMPARED: Final = ("link_layer", "model", "rate_gbps", "sm_lid", "prefix", "mtu")
_VOWELS: Final = frozenset("AEFHILMNORSX8")
"""Initials of spelt-out names that take `an`: an MT4129, but a BCM57608."""
_WORDS: Final[dict[Family, str]] = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}


def unlike(port: FabricPort, other: FabricPort | Rail) -> str | None:
    """The first field that is known of both ports and differs; None if all agree."""
    for name in COMPARED:
        if name == "mtu" and port.link_layer != ETHERNET:
            continue
        mine, its = getattr(port, name), getattr(other, name)
        if mine not in (None, "") and its not in (None, "") and mine != its:
            return name
    return None


def gids(port: FabricPort, family: Family) -> PortGids | None:
    """The addresses of one family."""
    return port.fourth if family == "AF_INET" else port.sixth


def lacks_gid(port: FabricPort, family: Family) -> bool:
    """True if NCCL would certainly find no address of the family on the port."""
    return port.link_layer == ETHERNET and port.table and gids(port, family) is None


def no_address(port: FabricPort, family: Family) -> str:
    """Text such as `mlx5_3:1 (eth3) has no IPv4 address that NCCL would take`."""
    where = f" ({port.netdev})" if port.netdev else ""
    return f"{port.key}{where} has no {_WORDS[family]} address that NCCL would take"


def described(name: str, value: object) -> str:
    """A value of a port, in words that follow its name."""
    match name:
        case "link_layer":
            return f"is {value}"
        case "model":
            return f"is {'an' if f'{value}'[:1] in _VOWELS else 'a'} {value}"
        case "rate_gbps":
            return f"runs at {value:g} Gb/s"
        case "sm_lid":
            return f"has the subnet manager at LID {value}"
        case "prefix":
            return f"is in the subnet {value}"
        case _:
            return f"has MTU {value}"
