"""Builds sysfs trees for tests, and unpacks those of real nodes."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.probe.fabric.fs_root import FsRoot, Read
from agent.probe.fabric.probe import ProbeOptions, probe
from muster.fabric.model import FabricProblem, Hca, Probe, Severity
from muster.fabric.operator_rules import Rules

CASES = Path(__file__).parent / "cases"
V1, V2 = "IB/RoCE v1", "RoCE v2"
EMPTY_GID = ":".join(["0000"] * 8)
LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"


def unpack(case: str, folder: Path) -> Path:
    """The tree of a real node."""
    with tarfile.open(CASES / case / "tree.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def refusing(root: Path, refused: Collection[str], number: int = errno.EINVAL) -> Read:
    """A kernel that refuses to read these files."""
    tree = FsRoot(root)

    def read(path: str) -> bytes:
        if path in refused:
            raise OSError(number, os.strerror(number), path)
        return tree.bytes_of(path)

    return read


def refused_of(case: str) -> frozenset[str]:
    """The files of a real node whose read the kernel refused."""
    file = CASES / case / "EINVAL.list"
    return frozenset(file.read_text().split()) if file.exists() else frozenset()


def mapped(address: str) -> str:
    """The GID of an IPv4 address."""
    one, two, three, four = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{one:02x}{two:02x}:{three:02x}{four:02x}"


GidRow = tuple[str, str | None, str | None]
"""GID, type, interface; EINVAL stands for None."""


def classical(address: str, netdev: str, local: str = LINK_LOCAL) -> dict[int, GidRow]:
    """The table of a host with one IPv4 address: each entry as v1 and as v2."""
    gid = mapped(address)
    rows = [(local, V1), (local, V2), (gid, V1), (gid, V2)]
    return {index: (one, kind, netdev) for index, (one, kind) in enumerate(rows)}


@dataclass
class Node:
    """A fake file tree of a node, built file by file."""

    root: Path
    refused: set[str] = field(default_factory=set)

    def file(self, path: str, text: str | bytes) -> Path:
        """Write one file."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)
        return place

    def link(self, path: str, target: str) -> None:
        """Make one link."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def pci(self, path: str, kind: str, vendor: str = "", device: str = "", numa: int = 0) -> str:
        """A function with all bridges above it; `path` is pci0000:00/0000:00:01.0/0000:01:00.0."""
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            one = f"sys/devices/{'/'.join(parts[:depth])}"
            last = depth == len(parts)
            if not (self.root / one / "class").exists():
                self.file(f"{one}/class", f"{kind if last else '0x060400'}\n")
                self.file(f"{one}/numa_node", f"{numa}\n")
                self.link(f"sys/bus/pci/devices/{parts[depth - 1]}", f"../../../../{one}")
            if last and vendor:
                self.file(f"{one}/vendor", f"0x{vendor}\n")
                self.file(f"{one}/device", f"0x{device}\n")
        return f"sys/devices/{path}"

    def gpu(self, path: str, numa: int = 0) -> None:
        """An H100."""
        self.pci(path, "0x030200", "10de", "2330", numa)

    def hca(
        self,
        name: str,
        *,
        path: str = "",
        numa: int = 0,
        kind: str = "0x020000",
        pci_id: str = "15b3:1021",
        **files: str,
    ) -> str:
        """A device, without ports; `path` is its PCI function's, without it there is none."""
        folder = f"sys/class/infiniband/{name}"
        if path:
            vendor, device = pci_id.split(":")
            place = self.pci(path, kind, vendor, device, numa)
            folder = f"{place}/infiniband/{name}"
            (self.root / folder).mkdir(parents=True)
            self.link(f"{folder}/device", "../..")
            self.link(f"sys/class/infiniband/{name}", f"../../../{folder}")
        for file, text in {"node_type": "1: CA", **files}.items():
            self.file(f"{folder}/{file}", f"{text}\n")
        return folder

    def port(
        self,
        name: str,
        port: int = 1,
        *,
        link: str = "Ethernet",
        state: str = "4: ACTIVE",
        phys: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        gids: Mapping[int, GidRow] | None = None,
        slots: int = 0,
        **files: str,
    ) -> str:
        """Make a port of an existing device; entries of `slots` that `gids` does not name are
        empty."""
        folder = f"sys/class/infiniband/{name}/ports/{port}"
        values = {"link_layer": link, "state": state, "phys_state": phys, "rate": rate, **files}
        for file, text in values.items():
            self.file(f"{folder}/{file}", f"{text}\n")
        table = gids or {}
        for index in range(max(slots, max(table, default=-1) + 1)):
            gid, version, netdev = table.get(index, (EMPTY_GID, None, None))
            self.file(f"{folder}/gids/{index}", f"{gid}\n")
            for kind, value in (("types", version), ("ndevs", netdev)):
                place = f"{folder}/gid_attrs/{kind}/{index}"
                self.file(place, "" if value is None else f"{value}\n")
                if value is None:
                    self.refused.add(place)
        return folder

    def probe(
        self,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        nccl: str | None = None,
        python: str | None = None,
        home: str | None = None,
        network: str | None = None,
    ) -> Probe:
        """Probe it."""
        asked = ProbeOptions(
            rules=Rules(tuple(include), tuple(exclude)),
            nccl=nccl,
            python=python,
            home=home,
            network=network,
        )
        return probe(self.root, asked, refusing(self.root, self.refused))


def by_key(found: Probe) -> dict[str, Hca]:
    """The ports by name:port."""
    return {hca.key: hca for hca in found.hcas}


def used(found: Probe) -> list[str]:
    """The ports that jobs use."""
    return [hca.key for hca in found.hcas if hca.use]


def problems_of(found: Probe, *severities: Severity) -> list[FabricProblem]:
    """The problems of these severities; of all but INFO without any."""
    wanted = severities or (Severity.ERROR, Severity.WARNING)
    return [problem for problem in found.problems if problem.severity in wanted]


def words(problems: Sequence[FabricProblem]) -> str:
    """All that they say."""
    return "\n".join(f"{problem.what} | {problem.fix}" for problem in problems)
