"""The environment of a node's jobs, from the choice of its HCAs.

Only what NCCL, gloo and UCX cannot find for themselves is set. Timeouts, algorithms, queue pairs
and the rest are left alone: their defaults follow NCCL's versions, and a value that helped one
cluster once harms the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from muster.fabric.choice import Choice
from muster.fabric.gids import fit_index, fit_indexes, is_sparse
from muster.fabric.nccl import DYNAMIC, ROBUST, Version
from muster.fabric.order import natural
from muster.fabric.types import ETHERNET, Hca


@dataclass(frozen=True, slots=True)
class Environment:
    """`values` for the jobs. `index` is the one forced on all HCAs, if one is. `apart`: this NCCL
    needs one index for all HCAs, and none is known that fits; a sentence that says so."""

    values: dict[str, str]
    index: int | None = None
    apart: str | None = None


def environment(
    choice: Choice, sockets: Sequence[str], version: Version | None = None
) -> Environment:
    """What to set. `sockets`: the interfaces for everything that is not RDMA, the best one alone
    will do. An unknown version is taken for a new one."""
    values: dict[str, str] = {}
    used = sorted(choice.used, key=lambda hca: (natural(hca.name), hca.port))
    index, apart = None, None
    if used:
        ports = ",".join(hca.key for hca in used)
        # `=`: without it mlx5_1 means mlx5_10 as well.
        values["NCCL_IB_HCA"] = f"={ports}"
        index, apart = _index(used, choice, version)
        if index is not None:
            values["NCCL_IB_GID_INDEX"] = str(index)
        elif version is None or version >= DYNAMIC:
            values |= _addresses(used, choice)
        values["UCX_NET_DEVICES"] = ports
    if sockets:
        values["NCCL_SOCKET_IFNAME"] = f"={','.join(sockets)}"
        values["GLOO_SOCKET_IFNAME"] = ",".join(sockets)
    return Environment(values, index, apart)


def _addresses(used: Sequence[Hca], choice: Choice) -> dict[str, str]:
    """What leads NCCL to the right addresses, where it would take others by itself."""
    values: dict[str, str] = {}
    if choice.family == "AF_INET6":
        values["NCCL_IB_ADDR_FAMILY"] = "AF_INET6"
    for hca in used:
        alone = fit_index(hca.gids, hca.gid_slots, choice.family)
        if choice.within is not None and hca.gid_index not in (None, alone):
            values["NCCL_IB_ADDR_RANGE"] = str(choice.within)
    return values


def _index(
    used: Sequence[Hca], choice: Choice, version: Version | None
) -> tuple[int | None, str | None]:
    """One number for all HCAs, where NCCL does not find it: before 2.21 never, before 2.26 not in a
    table with holes."""
    roce = [hca for hca in used if hca.link_layer == ETHERNET]
    ports = [hca for hca in roce if hca.gid_index is not None]
    if version is None or version >= ROBUST or not roce:
        return None, None
    if not ports:
        if version >= DYNAMIC:
            return None, None
        names = ", ".join(hca.key for hca in roce)
        return None, (
            f"NCCL {version[0]}.{version[1]} takes GID index 0 if it is told no other, and which "
            f"one is right for {names} is unknown"
        )
    if version >= DYNAMIC and not any(is_sparse(hca.gids) for hca in ports):
        return None, None
    wanted = Counter(hca.gid_index for hca in ports)
    common = frozenset.intersection(*(_fit(hca, choice) for hca in ports))
    for index, _ in wanted.most_common():
        if index in common:
            return index, None
    if common:
        return min(common), None
    told = ", ".join(f"{hca.key} needs {hca.gid_index}" for hca in ports)
    return None, f"NCCL {version[0]}.{version[1]} takes one GID index for all HCAs, but {told}"


def _fit(hca: Hca, choice: Choice) -> frozenset[int]:
    own = frozenset() if hca.gid_index is None else frozenset({hca.gid_index})
    return fit_indexes(hca.gids, choice.family) | own
