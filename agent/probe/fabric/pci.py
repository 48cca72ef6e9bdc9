"""Relevant PCI functions of a node: HCAs, GPUs and other accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Unread
from muster.fabric.topology import Path, is_function, path_of

DEVICES: Final = "sys/bus/pci/devices"
_ROOT: Final = "sys/devices"
_FUNCTIONS_MAX: Final = 8192
_DEPTH_MAX: Final = 32

INFINIBAND_CLASS: Final = 0x0207
_ETHERNET_CLASS, _OTHER_NETWORK_CLASS, _DISPLAY, _SERIAL = 0x0200, 0x0280, 0x03, 0x0C06
_COPROCESSOR, _ACCELERATOR = 0x0B40, 0x1200
MELLANOX: Final = 0x15B3
NVIDIA: Final = 0x10DE
AMD: Final = 0x1002
_INTEL, _NEC = 0x8086, 0x1BCF
_GPU_CLASSES: Final = {NVIDIA: (0x0300, 0x0302), AMD: (0x0300, 0x0302, 0x0380)}
# Xeon Phi. Other coprocessors of Intel compress and encrypt.
_PHI: Final = range(0x2250, 0x2260)
_ACS_CAPABILITY: Final = 0x000D
# P2P request redirect, P2P completion redirect, upstream forwarding.
_ACS_REDIRECTS: Final = 0x04 | 0x08 | 0x10
_CAPABILITIES_MAX: Final = 64
_HEAD: Final = 0x40


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function. `kind` is its class without the programming interface (0x0207); `path` is ()
    if the tree is hidden.
    """

    address: str
    kind: int
    vendor: int | None = None
    device: int | None = None
    numa_node: int | None = None
    path: Path = ()
    virtual: bool = False

    @property
    def id(self) -> str:
        """15b3:1021, in lspci's notation; "" if unknown."""
        if self.vendor is None or self.device is None:
            return ""
        return f"{self.vendor:04x}:{self.device:04x}"


def functions(tree: FsRoot) -> tuple[Function, ...]:
    """Return possible HCAs, GPUs and other accelerators in PCI order."""
    found = _functions(tree)
    if any(function.path for function in found):
        return found
    # In a copy, links have become directories, which do not show the position in the tree.
    paths = _paths(tree)
    return tuple(replace(it, path=paths.get(it.address, ())) for it in found)


def _paths(tree: FsRoot) -> dict[str, Path]:
    """Return every function below /sys/devices with its path."""
    found: dict[str, Path] = {}
    roots = tree.names(_ROOT)
    waiting: list[tuple[str, ...]] = [(name,) for name in _of(roots) if name.startswith("pci")]
    while waiting and len(found) < _FUNCTIONS_MAX:
        at = waiting.pop()
        for name in _of(tree.names("/".join((_ROOT, *at)))):
            path = path_of("/".join((*at, name)))
            if path and path[-1] == name:
                found[name] = path
                if len(path) < _DEPTH_MAX:
                    waiting.append((*at, name))
    return found


def _of(names: tuple[str, ...] | Unread) -> tuple[str, ...]:
    return () if isinstance(names, Unread) else names


def _functions(tree: FsRoot) -> tuple[Function, ...]:
    names = tree.names(DEVICES)
    if isinstance(names, Unread):
        return ()
    found = []
    for name in sorted(names):
        if not is_function(name):
            continue
        text = tree.text(f"{DEVICES}/{name}/class")
        number = None if isinstance(text, Unread) else sysfs_formats.hexadecimal(text)
        if number is None:
            continue
        kind = number >> 8
        if kind >> 8 in (0x02, _DISPLAY) or kind in (_SERIAL, _COPROCESSOR, _ACCELERATOR):
            found.append(_function(tree, name, kind))
    return tuple(sorted(found, key=lambda function: _order(function.address)))


def is_accelerator(function: Function) -> bool:
    """True if it is a GPU or a similar accelerator."""
    kinds = _GPU_CLASSES.get(function.vendor or 0, ())
    if function.kind in kinds or function.kind == _ACCELERATOR:
        return True
    if function.kind != _COPROCESSOR:
        return False
    return function.vendor in (NVIDIA, AMD, _NEC) or (
        function.vendor == _INTEL and function.device in _PHI
    )


def is_hca(function: Function) -> bool:
    """True if an RDMA driver could serve the card, by its class or vendor."""
    if function.kind == INFINIBAND_CLASS:
        return True
    return function.vendor == MELLANOX and function.kind in (
        _ETHERNET_CLASS,
        _OTHER_NETWORK_CLASS,
        _SERIAL,
    )


def redirecting(tree: FsRoot, paths: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bridges on these paths that redirect peer-to-peer traffic to the CPU (ACS), and
    those for which this is unknown.
    """
    bridges = {function for path in paths for function in path[1:-1]}
    found = {bridge: _acs(tree, f"{DEVICES}/{bridge}/config") for bridge in sorted(bridges)}
    return (
        tuple(bridge for bridge, redirects in found.items() if redirects),
        tuple(bridge for bridge, redirects in found.items() if redirects is None),
    )


def numa_node(tree: FsRoot, folder: str) -> int | Unread | None:
    """Return the NUMA node; -1 if the kernel does not know it."""
    text = tree.text(f"{folder}/numa_node")
    if isinstance(text, Unread):
        return text
    number = sysfs_formats.decimal(text)
    return number if number is not None and -1 <= number < 1 << 16 else None


def _function(tree: FsRoot, name: str, kind: int) -> Function:
    folder = f"{DEVICES}/{name}"
    where = tree.real(folder)
    numa = numa_node(tree, folder)
    return Function(
        address=name,
        kind=kind,
        vendor=_hex(tree, f"{folder}/vendor"),
        device=_hex(tree, f"{folder}/device"),
        numa_node=None if isinstance(numa, Unread) else numa,
        path=() if isinstance(where, Unread) else path_of(where),
        virtual=not isinstance(tree.link(f"{folder}/physfn"), Unread)
        or tree.exists(f"{folder}/physfn"),
    )


def _hex(tree: FsRoot, path: str) -> int | None:
    text = tree.text(path)
    return None if isinstance(text, Unread) else sysfs_formats.hexadecimal(text)


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))


def _acs(tree: FsRoot, path: str) -> bool | None:
    """True if ACS redirects. Reads four bytes at a time, because reading the whole configuration
    space takes milliseconds. None if unreadable, or if only its head is, as without root.
    """
    if not tree.window(path, _HEAD, 1):
        return None
    offset = 0x100
    for _ in range(_CAPABILITIES_MAX):
        header = tree.window(path, offset, 4)
        if len(header) < 4:
            return False
        value = int.from_bytes(header, "little")
        if value & 0xFFFF == _ACS_CAPABILITY:
            control = tree.window(path, offset + 6, 2)
            return bool(int.from_bytes(control, "little") & _ACS_REDIRECTS)
        offset = value >> 20
        if offset < 0x100:
            return False
    return False
