"""Distances between GPUs and HCAs, from their paths through the PCI tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from muster.fabric.model import Affinity, AffinityClass, Gpu

Path = tuple[str, ...]
"""From the host bridge (pci0000:17) down to the function itself (0000:1a:00.0)."""

_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_NAMED: Final = re.compile(
    r"(?:ib|roce|rdma|iw|opa|usnic)(?:P([0-9]{1,10}))?p([0-9]{1,3})s([0-9]{1,2})(?:f([0-9]))?"
)
NEAR: Final = (AffinityClass.PIX, AffinityClass.PXB)
_ORDER: Final = {kind: place for place, kind in enumerate(AffinityClass)}
_CLASS: Final = 100


def path_of(text: str) -> Path:
    """Return the PCI part of a sysfs path; () if there is none."""
    found: list[str] = []
    for part in text.split("/"):
        if _ROOT.fullmatch(part):
            found = [part]
        elif found and _FUNCTION.fullmatch(part):
            found.append(part)
    return tuple(found) if len(found) > 1 else ()


def is_function(text: str) -> bool:
    """True if the text is a PCI address with its domain, 0000:1a:00.0."""
    return _FUNCTION.fullmatch(text) is not None


def function_of_name(name: str) -> str:
    """Return the PCI function in a udev device name, ibp12s0 or rocep193s0f1, whose numbers are
    decimal. "" for other names.
    """
    found = _NAMED.fullmatch(name)
    if not found:
        return ""
    domain, bus, slot, function = (int(part or 0) for part in found.groups())
    if domain > 0xFFFFFFFF or bus > 0xFF or slot > 0x1F or function > 7:
        return ""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def card_of(function: str) -> str:
    """Return the slot of a function, which the functions of one card share."""
    return function.rpartition(".")[0]


def distance(
    gpu: Path, hca: Path, gpu_numa: int | None, hca_numa: int | None
) -> tuple[AffinityClass, int | None]:
    """Return the distance class between two functions, and the number of bridges."""
    if not gpu or not hca:
        return AffinityClass.UNKNOWN, None
    common = 0
    for one, other in zip(gpu, hca, strict=False):
        if one != other:
            break
        common += 1
    above_gpu = max(len(gpu) - common - 1, 0)
    above_hca = max(len(hca) - common - 1, 0)
    hops = above_gpu + above_hca
    if common == 0:
        if gpu_numa is None or hca_numa is None or gpu_numa < 0 or hca_numa < 0:
            return AffinityClass.UNKNOWN, None
        return (AffinityClass.NODE if gpu_numa == hca_numa else AffinityClass.SYS), hops
    if common == 1:
        return AffinityClass.PHB, hops
    if above_gpu <= 1 and above_hca <= 1:
        return AffinityClass.PIX, hops
    return AffinityClass.PXB, hops


def pairs(gpus: Sequence[Gpu], hcas: Iterable[tuple[str, Path, int | None]]) -> list[Affinity]:
    """Return each GPU with each HCA (name, path, NUMA node), the nearest HCA of a GPU first."""
    found = []
    others = list(hcas)
    for gpu in gpus:
        of_gpu = []
        for name, path, numa in others:
            kind, hops = distance(gpu.pci_path, path, gpu.numa_node, numa)
            of_gpu.append(
                Affinity(gpu=gpu.pci, gpu_index=gpu.index, hca=name, distance=kind, hops=hops)
            )
        of_gpu.sort(key=rank)
        found += of_gpu
    return found


def rank(pair: Affinity) -> tuple[int, int]:
    """Sort key: lower is nearer."""
    return _ORDER[pair.distance], pair.hops or 0


def way(pair: Affinity) -> int:
    """`rank` as one number: 100 per class, plus the hops; -1 if unknown."""
    if pair.distance is AffinityClass.UNKNOWN:
        return -1
    return _CLASS * _ORDER[pair.distance] + min(pair.hops or 0, _CLASS - 1)


def nearest(ways: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the columns that are nearest to at least one row, in order.

    Rows are the GPUs of a task, columns the HCAs that it may use, values the `way` between them.
    All equally near HCAs of a GPU are included; beyond the host bridge, hops do not matter, and all
    of a class are. A GPU without data is ignored. Without any data, all columns are returned.
    """
    rows = [tuple(row) for row in ways]
    found: set[int] = set()
    for row in rows:
        known = [_near(cost) for cost in row if cost >= 0]
        if known:
            best = min(known)
            found |= {at for at, cost in enumerate(row) if cost >= 0 and _near(cost) == best}
    if found:
        return tuple(sorted(found))
    return tuple(range(max((len(row) for row in rows), default=0)))


def _near(cost: int) -> int:
    return cost if cost < _CLASS * len(NEAR) else cost - cost % _CLASS


def is_flat(
    gpus: Sequence[Gpu], hcas: Sequence[tuple[Path, int | None]], *, virtual: bool | None = None
) -> bool:
    """True if a virtual machine hides the real tree: every device is directly below the host bridge
    or below a bridge of its own, on a single NUMA node. Then distances mean nothing. `virtual`:
    whether a hypervisor is below; None if unknown.
    """
    if virtual is False:
        return False
    paths = {gpu.pci_path for gpu in gpus}, {path for path, _ in hcas}
    if len(paths[0]) * len(paths[1]) < 2 or any(not path for side in paths for path in side):
        return False
    numas = {gpu.numa_node for gpu in gpus} | {numa for _, numa in hcas}
    known = {numa for numa in numas if numa is not None and numa >= 0}
    if known and len(numas) > 1:
        return False
    node = next(iter(known), None)
    found = {distance(one, other, node, node) for one in paths[0] for other in paths[1]}
    if len(found) != 1:
        return False
    kind = next(iter(found))[0]
    if not known:
        return kind is AffinityClass.PHB
    if virtual is None:
        # A workstation may have one of each on its only host bridge.
        return kind is AffinityClass.PHB and min(map(len, paths)) > 1
    return kind in (AffinityClass.PHB, AffinityClass.NODE)


def unknown(found: Iterable[Affinity]) -> list[Affinity]:
    """Return the same pairs with unknown distances."""
    return [
        Affinity(
            gpu=pair.gpu,
            gpu_index=pair.gpu_index,
            hca=pair.hca,
            distance=AffinityClass.UNKNOWN,
            hops=None,
        )
        for pair in found
    ]
