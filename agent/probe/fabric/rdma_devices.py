"""RDMA devices, their ports and GID tables, from /sys/class/infiniband."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Unread, unread
from agent.probe.fabric.pci import DEVICES, Function, numa_node
from agent.probe.fabric.user_access import JobUser
from muster.fabric.gids import (
    EMPTY,
    address_of,
    is_empty,
    is_link_local,
    is_prefix_only,
    is_routable,
    number_of,
)
from muster.fabric.model import ETHERNET, INFINIBAND, Counters, Gid, Hca
from muster.fabric.natural_sort import natural
from muster.fabric.topology import function_of_name, is_function, path_of

CLASS: Final = "sys/class/infiniband"
_VERBS: Final = "sys/class/infiniband_verbs"
_VIRTUAL: Final = "sys/devices/virtual/infiniband"
_NETWORK, _SERIAL = 0x02, 0x0C06
_PCI_ID: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_DRIVER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORD_BYTES: Final = 4
_ARPHRD_INFINIBAND: Final = 32
_PORTS_MAX: Final = 256

_T = TypeVar("_T")


class Devices:
    """All entries of /sys/class/infiniband. `skipped`: entries that are no device, and why.
    `unread`: why the directory is unreadable, else "". `functions`: the functions of the PCI bus.
    """

    def __init__(
        self, tree: FsRoot, user: JobUser | None = None, functions: Sequence[Function] = ()
    ) -> None:
        self._tree = tree
        self._user = user
        self._functions = {function.address: function for function in functions}
        self._named: dict[str, str] | None = None
        self.hcas: list[Hca] = []
        self.skipped: dict[str, str] = {}
        names = tree.names(CLASS)
        there = not isinstance(names, Unread)
        self.unread = names.why if isinstance(names, Unread) and not names.absent else ""
        self._verbs = self._uverbs() if there else {}
        for name in () if isinstance(names, Unread) else sorted(names, key=natural):
            self._device(name)

    def _uverbs(self) -> dict[str, str]:
        names = self._tree.names(_VERBS)
        found = {}
        for name in () if isinstance(names, Unread) else sorted(names, key=natural):
            if name.startswith("uverbs"):
                device = self._tree.text(f"{_VERBS}/{name}/ibdev")
                if not isinstance(device, Unread):
                    found[sysfs_formats.first_line(device)] = name
        return found

    def _device(self, name: str) -> None:
        tree, folder = self._tree, f"{CLASS}/{name}"
        ports = tree.names(f"{folder}/ports")
        if isinstance(ports, Unread):
            link = tree.link(folder)
            dangling = not isinstance(link, Unread) and not tree.exists(folder)
            self.skipped[name] = "broken link" if dangling else f"ports: {ports.why}"
            return
        numbers = sorted(int(port) for port in ports if port.isascii() and port.isdecimal())
        if not numbers:
            self.skipped[name] = "it has no port"
            return
        common = self._common(name, folder)
        self.hcas += [self._port(common, port) for port in numbers[:_PORTS_MAX]]

    def _common(self, name: str, folder: str) -> Hca:
        """Return the properties shared by the ports of a device."""
        tree = self._tree
        said = _Said(tree, folder)
        node_type = said.of("node_type", sysfs_formats.numbered)
        where = tree.real(folder)
        place = "" if isinstance(where, Unread) else where
        at = tree.real(f"{folder}/device")
        path = path_of(place if isinstance(at, Unread) else at)
        event = sysfs_formats.uevent_of(tree.text(f"{folder}/device/uevent"))
        virtual = f"{_VIRTUAL}/{name}"
        software = place.startswith("sys/devices/virtual/") or (not path and tree.exists(virtual))
        slot = event.get("PCI_SLOT_NAME", "").lower()
        function = path[-1] if path else slot if is_function(slot) else self._of_bus(name)
        pci = function if is_function(function) and not software else None
        known = self._functions.get(pci or "")
        if known is not None and not path:
            path = known.path
        numa: int | None = None
        read = numa_node(tree, f"{folder}/device")
        if isinstance(read, Unread) and known is not None and known.numa_node is not None:
            numa = known.numa_node
        elif isinstance(read, Unread) or read is None:
            said.unknown["numa_node"] = read.why if isinstance(read, Unread) else "no number"
        else:
            numa = read
        if pci is None:
            said.unknown["pci"] = at.why if isinstance(at, Unread) else "not a PCI device"
        verbs = self._verbs.get(name)
        return Hca(
            name=name,
            port=0,
            pci=pci,
            numa_node=numa,
            hca_type=said.of("hca_type", sysfs_formats.word),
            fw_ver=said.of("fw_ver", sysfs_formats.word),
            node_type=None if node_type is None else node_type.number,
            node_guid=said.of("node_guid", sysfs_formats.guid),
            sys_image_guid=said.of("sys_image_guid", sysfs_formats.guid),
            board_id=said.of("board_id", sysfs_formats.word),
            driver=self._driver(folder, event),
            pci_id=self._pci_id(folder, event) or (known.id or None if known else None),
            pci_class=self._hex(f"{folder}/device/class") or (known.kind << 8 if known else None),
            pci_path=path,
            virtual=software,
            physical_function=self._physical(folder),
            uverbs=None if verbs is None else f"/dev/infiniband/{verbs}",
            uverbs_error=None if verbs is None else self._cannot_open(verbs, said),
            unknown=said.unknown,
        )

    def _driver(self, folder: str, event: dict[str, str]) -> str | None:
        link = self._tree.link(f"{folder}/device/driver")
        if isinstance(link, Unread):
            name = event.get("DRIVER", "")
            return name if _DRIVER.fullmatch(name) else None
        return link.rpartition("/")[2] or None

    def _pci_id(self, folder: str, event: dict[str, str]) -> str | None:
        vendor = self._hex(f"{folder}/device/vendor")
        device = self._hex(f"{folder}/device/device")
        if vendor is None or device is None:
            text = event.get("PCI_ID", "").lower()
            return text if _PCI_ID.fullmatch(text) else None
        return f"{vendor:04x}:{device:04x}"

    def _hex(self, path: str) -> int | None:
        text = self._tree.text(path)
        number = None if isinstance(text, Unread) else sysfs_formats.hexadecimal(text)
        return number if number is not None and number < 1 << 32 else None

    def _physical(self, folder: str) -> str | None:
        link = self._tree.link(f"{folder}/device/physfn")
        if isinstance(link, Unread):
            event = sysfs_formats.uevent_of(self._tree.text(f"{folder}/device/physfn/uevent"))
            name = event.get("PCI_SLOT_NAME", "").lower()
        else:
            name = link.rpartition("/")[2]
        return name if is_function(name) else None

    def _of_bus(self, name: str) -> str:
        """Return the PCI function of a device without a link to one: the function that names the
        device, else the one in its udev name; "" if there is none.
        """
        if self._named is None:
            self._named = {}
            for address, function in self._functions.items():
                if function.kind >> 8 == _NETWORK or function.kind == _SERIAL:
                    names = self._tree.names(f"{DEVICES}/{address}/infiniband")
                    own = () if isinstance(names, Unread) else names
                    self._named |= dict.fromkeys(own, address)
        if name in self._named:
            return self._named[name]
        address = function_of_name(name)
        return address if not self._functions or address in self._functions else ""

    def _cannot_open(self, verbs: str, said: _Said) -> str | None:
        """Return why the device file cannot be opened. None also if it is missing: that is unknown,
        not wrong.
        """
        place = self._tree.locate(f"dev/infiniband/{verbs}")
        if isinstance(place, Unread):
            said.unknown["uverbs"] = place.why
            return None
        if self._user is not None:
            return self._user.cannot_open(place)
        if not self._tree.live and not os.path.isfile(place):
            # A device file in a copied tree would be this machine's device.
            return None
        try:
            os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError as error:
            return unread(error).why
        return None

    def _port(self, common: Hca, port: int) -> Hca:
        tree, folder = self._tree, f"{CLASS}/{common.name}/ports/{port}"
        said = _Said(tree, folder, dict(common.unknown))
        rate = said.of("rate", sysfs_formats.rate, "rate_gbps")
        link_layer = said.of("link_layer", sysfs_formats.link_layer)
        gids, slots, missed = self._gids(folder, said, link_layer)
        written = tree.text(f"{folder}/rate")
        below = self._below(common.name, port, link_layer)
        netdevs = self._netdevs(common.name, gids, below, link_layer)
        return replace(
            common,
            port=port,
            link_layer=link_layer,
            state=said.of("state", sysfs_formats.port_state),
            phys_state=said.of("phys_state", sysfs_formats.phys_state),
            rate_gbps=None if rate is None else rate.gbps,
            rate=None if isinstance(written, Unread) else sysfs_formats.word(written),
            lid=said.of("lid", sysfs_formats.hexadecimal),
            sm_lid=said.of("sm_lid", sysfs_formats.hexadecimal),
            gids=gids,
            gid_slots=slots,
            gids_unread=missed,
            addresses=_addresses(gids) if link_layer == ETHERNET else (),
            netdevs=netdevs,
            members=tuple(name for name in below if name not in netdevs),
            counters=self._counters(folder),
            unknown=said.unknown,
        )

    def _gids(
        self, folder: str, said: _Said, link_layer: str | None
    ) -> tuple[tuple[Gid, ...], int | None, int]:
        """Return the used entries, the length of the table (None: not read) and the number of
        unknown ones.
        """
        tree = self._tree
        names = tree.names(f"{folder}/gids")
        if isinstance(names, Unread):
            said.unknown["gids"] = names.why
            return (), None, 0
        found: list[Gid] = []
        read, missed, why = 0, 0, "an empty table"
        indexes = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        for index in indexes:
            text = tree.text(f"{folder}/gids/{index}")
            if isinstance(text, Unread):
                missed += not text.empty
                why = text.why
                continue
            if text in EMPTY:
                # Nearly all are unused.
                read += 1
                continue
            gid = sysfs_formats.gid(text)
            if gid is None:
                missed += 1
                why = "not a GID"
                continue
            read += 1
            number = number_of(gid) or 0
            # On InfiniBand an unused entry has the subnet prefix, whatever that is.
            bare = link_layer == INFINIBAND and is_prefix_only(number)
            if not is_empty(number) and not bare:
                found.append(self._gid(folder, index, gid, number))
        if not read:
            said.unknown["gids"] = why
            return (), None, missed
        if missed:
            said.unknown["gids"] = f"{missed} of {len(indexes)} entries not read: {why}"
        return tuple(found), indexes[-1] + 1, missed

    def _gid(self, folder: str, index: int, gid: str, number: int) -> Gid:
        kind = self._tree.text(f"{folder}/gid_attrs/types/{index}")
        netdev = self._tree.text(f"{folder}/gid_attrs/ndevs/{index}")
        address = None if is_link_local(number) else address_of(number)
        return Gid(
            index=index,
            gid=gid,
            type=None if isinstance(kind, Unread) else sysfs_formats.word(kind),
            netdev=None if isinstance(netdev, Unread) else sysfs_formats.word(netdev),
            address=None if address is None else str(address),
        )

    def _netdevs(
        self, name: str, gids: tuple[Gid, ...], below: tuple[str, ...], link_layer: str | None
    ) -> tuple[str, ...]:
        """Return the port's interfaces. RoCE GIDs name them, also a VLAN or a bond. Otherwise it is
        the one below the PCI function, or its bond.
        """
        named = tuple(dict.fromkeys(gid.netdev for gid in gids if gid.netdev is not None))
        folder = f"{CLASS}/{name}/device/net"
        if link_layer == INFINIBAND:
            return named or below
        return named or tuple(self._master(f"{folder}/{dev}", dev) for dev in below)

    def _below(self, name: str, port: int, link_layer: str | None) -> tuple[str, ...]:
        """Return the port's interfaces below the PCI function, which also has those of its other
        ports.
        """
        tree, folder = self._tree, f"{CLASS}/{name}/device/net"
        if link_layer == INFINIBAND:
            return ipoib_of(tree, name, port)
        found = tree.names(folder)
        if isinstance(found, Unread):
            return ()
        devices = sorted(found, key=natural)
        if len(devices) > 1:
            numbered = [dev for dev in devices if _number(tree, f"{folder}/{dev}") == port - 1]
            devices = numbered or devices
        return tuple(devices)

    def _master(self, folder: str, name: str) -> str:
        link = self._tree.link(f"{folder}/master")
        if not isinstance(link, Unread):
            return link.rpartition("/")[2] or name
        return sysfs_formats.uevent_of(self._tree.text(f"{folder}/master/uevent")).get(
            "INTERFACE", name
        )

    def _counters(self, folder: str) -> Counters:
        tree = self._tree

        def one(name: str, unit: int = 1) -> int | None:
            text = tree.text(f"{folder}/counters/{name}")
            number = None if isinstance(text, Unread) else sysfs_formats.counter(text)
            return None if number is None or number * unit >= 1 << 64 else number * unit

        return Counters(
            xmit_bytes=one("port_xmit_data", _WORD_BYTES),
            rcv_bytes=one("port_rcv_data", _WORD_BYTES),
            link_downed=one("link_downed"),
            symbol_error=one("symbol_error"),
            port_rcv_errors=one("port_rcv_errors"),
        )


def ipoib_of(tree: FsRoot, name: str, port: int) -> tuple[str, ...]:
    """Return the IPoIB interfaces of an InfiniBand port, by its GUID, else by its number.
    Interfaces of the card's other ports, possibly Ethernet, are in the same directory. An interface
    without either belongs to this port.
    """
    folder = f"{CLASS}/{name}/device/net"
    found = tree.names(folder)
    if isinstance(found, Unread):
        return ()
    devices = [dev for dev in sorted(found, key=natural) if _may_be_ipoib(tree, f"{folder}/{dev}")]
    text = tree.text(f"{CLASS}/{name}/ports/{port}/gids/0")
    gid = None if isinstance(text, Unread) else sysfs_formats.gid(text)
    by_guid = [dev for dev in devices if gid and _guid(tree, f"{folder}/{dev}") == gid[20:]]
    if by_guid:
        return tuple(by_guid)
    return tuple(dev for dev in devices if _number(tree, f"{folder}/{dev}") in (port - 1, None))


def _may_be_ipoib(tree: FsRoot, folder: str) -> bool:
    text = tree.text(f"{folder}/type")
    return isinstance(text, Unread) or sysfs_formats.decimal(text) in (_ARPHRD_INFINIBAND, None)


def _guid(tree: FsRoot, folder: str) -> str | None:
    text = tree.text(f"{folder}/address")
    return None if isinstance(text, Unread) else sysfs_formats.ipoib_port_guid(text)


def _number(tree: FsRoot, folder: str) -> int | None:
    """Return the port number of an interface on its card, from 0. Older kernels use dev_id."""
    port = tree.text(f"{folder}/dev_port")
    number = None if isinstance(port, Unread) else sysfs_formats.decimal(port)
    if number:
        return number
    old = tree.text(f"{folder}/dev_id")
    return number if isinstance(old, Unread) else sysfs_formats.hexadecimal(old)


class _Said:
    """Reads fields of a directory and records why unknown ones are unknown."""

    def __init__(self, tree: FsRoot, folder: str, unknown: dict[str, str] | None = None) -> None:
        self._tree = tree
        self._folder = folder
        self.unknown = {} if unknown is None else unknown

    def of(self, file: str, parse: Callable[[str], _T | None], field: str = "") -> _T | None:
        text = self._tree.text(f"{self._folder}/{file}")
        if isinstance(text, Unread):
            self.unknown[field or file] = text.why
            return None
        value = parse(text)
        if value is None:
            self.unknown[field or file] = f"not understood: {text[:40]!r}"
        return value


def _addresses(gids: tuple[Gid, ...]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            gid.address
            for gid in gids
            if gid.address is not None and is_routable(number_of(gid.gid) or 0)
        )
    )
