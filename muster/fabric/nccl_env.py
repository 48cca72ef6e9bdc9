"""Environment of a node's jobs, derived from the ports that they use.

Only settings that NCCL, gloo and UCX cannot find themselves are set. Timeouts, algorithms, queue
pairs and the rest are left alone: their defaults follow NCCL's versions, and a value that helped
one cluster once harms the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.fabric.gids import Family, fit_indexes, is_sparse, strays
from muster.fabric.hca_selection import Choice
from muster.fabric.model import ETHERNET, Hca
from muster.fabric.natural_sort import natural
from muster.fabric.nccl_version import DYNAMIC, ROBUST, Version
from muster.fabric.operator_rules import single_range

_UCX_AUTO: Final = (1, 5)
_UCX_SIXTH: Final = (1, 20)


class Port(msgspec.Struct, frozen=True):
    """A port that jobs use, reduced to what determines the environment.

    For a RoCE port: `index` is the GID for NCCL, None if unknown; `fit` are all fitting ones;
    `ranged`: NCCL chooses `index` only with a setting, the network of the addresses or else the
    index; `sparse`: the table has holes.
    """

    name: str
    port: int
    roce: bool = False
    index: int | None = None
    fit: frozenset[int] = frozenset()
    ranged: bool = False
    sparse: bool = False

    @property
    def key(self) -> str:
        """mlx5_0:1, in the notation of NCCL and UCX."""
        return f"{self.name}:{self.port}"


class Environment(msgspec.Struct, frozen=True):
    """`values` for the jobs. `index` is the one forced on all HCAs, if any. `apart` is a sentence
    if this NCCL needs one index for all HCAs and none fits all.
    """

    values: dict[str, str]
    index: int | None = None
    apart: str | None = None


def environment(
    choice: Choice,
    sockets: Sequence[str],
    version: Version | None = None,
    ucx: Version | None = None,
) -> Environment:
    """Return the settings for a single node."""
    ports = [_port(hca, choice) for hca in choice.used]
    return of_ports(ports, sockets, version, choice.family, single_range(choice.within), ucx)


def of_ports(
    ports: Sequence[Port],
    sockets: Sequence[str],
    version: Version | None = None,
    family: Family = "AF_INET",
    within: str = "",
    ucx: Version | None = None,
) -> Environment:
    """Return the settings. `sockets` are the interfaces for non-RDMA traffic; the best one is
    enough. `within` is the network of the addresses, if the operator names one. An unknown version
    counts as a new one. `ucx` is the version of UCX, which has its own rule.
    """
    values: dict[str, str] = {}
    used = sorted(ports, key=lambda port: (natural(port.name), port.port))
    index, apart = None, None
    if used:
        keys = ",".join(port.key for port in used)
        # `=` requests an exact match: otherwise mlx5_1 matches mlx5_10, too.
        values["NCCL_IB_HCA"] = f"={keys}"
        index, apart = _index(used, version, within)
        if index is not None:
            values["NCCL_IB_GID_INDEX"] = str(index)
        elif version is None or version >= DYNAMIC:
            # Settings that lead NCCL to the right addresses if its own choice is wrong.
            if family == "AF_INET6":
                values["NCCL_IB_ADDR_FAMILY"] = family
            if within and any(port.ranged for port in used):
                values["NCCL_IB_ADDR_RANGE"] = within
        values["UCX_NET_DEVICES"] = keys
        entry = _ucx_index(used, family, ucx)
        if entry is not None:
            values["UCX_IB_GID_INDEX"] = str(entry)
    if sockets:
        values["NCCL_SOCKET_IFNAME"] = f"={','.join(sockets)}"
        values["GLOO_SOCKET_IFNAME"] = ",".join(sockets)
    return Environment(values, index, apart)


def _port(hca: Hca, choice: Choice) -> Port:
    if hca.link_layer != ETHERNET:
        return Port(hca.name, hca.port)
    index = hca.gid_index
    own = frozenset() if index is None else frozenset({index})
    return Port(
        hca.name,
        hca.port,
        roce=True,
        index=index,
        fit=fit_indexes(hca.gids, choice.family, choice.within) | own,
        ranged=strays(hca.gids, hca.gid_slots, choice.family, index),
        sparse=is_sparse(hca.gids),
    )


def _ucx_index(used: Sequence[Port], family: Family, version: Version | None) -> int | None:
    """Return one index for all HCAs if UCX's own choice is wrong: entry 0 before 1.5, and before
    1.20 a link-local address before a routable one of IPv6. If none fits all, UCX chooses.
    """
    if version is None or version >= (_UCX_SIXTH if family == "AF_INET6" else _UCX_AUTO):
        return None
    known = [port for port in used if port.roce and port.index is not None]
    if not known:
        return None
    wanted = Counter(port.index for port in known)
    common = frozenset.intersection(*(port.fit for port in known))
    return next((index for index, _ in wanted.most_common() if index in common), None)


def _index(
    used: Sequence[Port], version: Version | None, within: str
) -> tuple[int | None, str | None]:
    """Return one index for all HCAs if NCCL's own choice is wrong: before 2.21 always, before 2.26
    in a table with holes, and later if it would choose another one and no network setting helps.
    """
    roce = [port for port in used if port.roce]
    known = [port for port in roce if port.index is not None]
    if not roce:
        return None, None
    name = "NCCL" if version is None else f"NCCL {version[0]}.{version[1]}"
    if version is None or version >= DYNAMIC:
        holes = version is not None and version < ROBUST and any(port.sparse for port in known)
        led = not within and any(port.ranged for port in known)
        if not holes and not led:
            return None, None
    elif not known:
        names = ", ".join(port.key for port in roce)
        return None, (
            f"{name} uses GID index 0 unless another one is set, and the right one for {names} is "
            "unknown"
        )
    wanted = Counter(port.index for port in known)
    common = frozenset.intersection(*(port.fit for port in known))
    for index, _ in wanted.most_common():
        if index in common:
            return index, None
    if common:
        return min(common), None
    needs = ", ".join(f"{port.key} needs {port.index}" for port in known)
    return None, f"{name} takes one GID index for all HCAs, but {needs}"
