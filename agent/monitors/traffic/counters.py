"""Reads the counters of RDMA ports and network interfaces, below any root.

Unreadable counters are left out of the reading; nothing here raises because of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Read, Unread
from agent.probe.fabric.interfaces import NET
from agent.probe.fabric.rdma_devices import CLASS, ipoib_of
from muster.fabric.counters import (
    COUNTERS,
    DATA,
    FAULTS,
    LINK_DOWNED,
    RECEIVED,
    SENT,
    WORD_BYTES,
    PortReading,
    Reading,
)
from muster.fabric.model import INFINIBAND
from muster.fabric.natural_sort import natural

_PORTS_MAX: Final = 64
_FAULTS: Final = (*FAULTS, LINK_DOWNED)
# Directories and names of the data counters, best first, and their units. Kernels before 4.5 keep
# the 64-bit ones apart; EFA has only bytes.
_DATA: Final = (
    ("counters_ext", {SENT: "port_xmit_data_64", RECEIVED: "port_rcv_data_64"}, WORD_BYTES),
    (COUNTERS, {SENT: SENT, RECEIVED: RECEIVED}, WORD_BYTES),
    ("hw_counters", {SENT: "tx_bytes", RECEIVED: "rx_bytes"}, 1),
)
# 32-bit counters do not wrap around: by the standard, they stop.
_END: Final = (1 << 32) - 1


class CounterReader:
    """The ports and interfaces of one node. The mapping of ports to interfaces is read once."""

    def __init__(self, root: Path = Path("/"), read: Read | None = None) -> None:
        self._root = root
        self._read = read
        self._ports: dict[str, _Port] = {}

    def reading(self, netdevs: Sequence[str], at: float) -> Reading:
        """Read all ports, these interfaces, and those of the ports."""
        tree = FsRoot(self._root, self._read)
        ports = [self._port(tree, name, port) for name, port in names_of_ports(tree)]
        ipoib = (netdev for port in ports for netdev in port.ipoib)
        sockets = {}
        for name in dict.fromkeys((*netdevs, *ipoib)):
            pair = _bytes_of(tree, name)
            if pair is not None:
                sockets[name] = pair
        return Reading(at, tuple(ports), sockets)

    def _port(self, tree: FsRoot, name: str, port: str) -> PortReading:
        key, device = f"{name}:{port}", f"{CLASS}/{name}"
        known = self._ports.get(key)
        if known is None:
            known = self._ports[key] = _Port(tree, name, port)
        folders = {name: _Folder(tree, f"{device}/ports/{port}/{name}") for name, *_ in _DATA}
        if not folders["hw_counters"].names:
            folders["hw_counters"] = _Folder(tree, f"{device}/hw_counters")
        values: dict[str, int] = {}
        why = "no such file"
        for what in DATA:
            for folder, names, unit in _DATA:
                if known.folders.get(what, folder) != folder:
                    continue
                found = folders[folder].value(names[what])
                if folder == COUNTERS and found == _END:
                    found = "it has reached its maximum of 32 bits"
                if isinstance(found, int):
                    values[what] = found * unit // WORD_BYTES
                    known.folders[what] = folder
                    break
                if folder == COUNTERS:
                    why = found
        for fault in _FAULTS:
            found = folders[COUNTERS].value(fault)
            if isinstance(found, str):
                found = folders["hw_counters"].value(fault)
            if isinstance(found, int):
                values[fault] = found
        silent = SENT not in values and RECEIVED not in values
        return PortReading(key, values, known.ipoib, why if silent else "", dict(known.folders))


class _Port:
    """Properties of a port that do not change during a task. `folders` is where its data counters
    were first found, because those of another directory do not continue them.
    """

    def __init__(self, tree: FsRoot, name: str, port: str) -> None:
        folder = f"{CLASS}/{name}/ports/{port}"
        link = tree.text(f"{folder}/link_layer")
        self.folders: dict[str, str] = {}
        self.ipoib: tuple[str, ...] = ()
        if not isinstance(link, Unread) and sysfs_formats.link_layer(link) == INFINIBAND:
            self.ipoib = ipoib_of(tree, name, int(port))


class _Folder:
    """The counters of one directory. Opens only the named ones."""

    def __init__(self, tree: FsRoot, path: str) -> None:
        self._tree, self._path = tree, path
        names = tree.names(path)
        self._why = names.why if isinstance(names, Unread) else "no such file"
        self.names = frozenset() if isinstance(names, Unread) else frozenset(names)

    def value(self, name: str) -> int | str:
        """Return the counter, or why it is unknown."""
        if name not in self.names:
            return self._why
        text = self._tree.text(f"{self._path}/{name}")
        if isinstance(text, Unread):
            return text.why
        value = sysfs_formats.counter(text)
        return "no counter" if value is None else value


def names_of_ports(tree: FsRoot) -> list[tuple[str, str]]:
    """Return all devices with their port numbers."""
    names = tree.names(CLASS)
    found: list[tuple[str, str]] = []
    for name in () if isinstance(names, Unread) else sorted(names, key=natural):
        ports = tree.names(f"{CLASS}/{name}/ports")
        if not isinstance(ports, Unread):
            numbers = (port for port in ports if port.isascii() and port.isdecimal())
            found += [(name, port) for port in sorted(numbers, key=int)]
    return found[:_PORTS_MAX]


def _bytes_of(tree: FsRoot, netdev: str) -> tuple[int, int] | None:
    pair = []
    for name in ("tx_bytes", "rx_bytes"):
        text = tree.text(f"{NET}/{netdev}/statistics/{name}")
        value = None if isinstance(text, Unread) else sysfs_formats.counter(text)
        if value is None:
            return None
        pair.append(value)
    return pair[0], pair[1]


def interfaces(root: Path) -> tuple[str, ...]:
    """Return all interfaces that leave the machine, for a task whose plan names none."""
    tree = FsRoot(root)
    names = tree.names(NET)
    if isinstance(names, Unread):
        return ()
    there = (name for name in names if tree.exists(f"{NET}/{name}/device"))
    return tuple(sorted(there, key=natural)[:_PORTS_MAX])
