"""A full probe of a very large node: 12 HCAs with GID tables of 256 entries, 8 GPUs.

The tree is made of plain files, on which an open costs about what it does in sysfs. The floor is an
`open, read, close` of every GID file, which every reader of the table needs. Memory is the growth
of the process over 1,000 probes.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent.probe.fabric.probe import probe
from agent.probe.fabric.report import probe_text
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row

HCAS = 12
GIDS = 256
GPUS = 8
AIM_MS = 50
BLOCKS_AIM = 100
_WARM_UP = 100
_EMPTY = ":".join(["0000"] * 8)


def main() -> int:
    args = _arguments()
    where = machine()
    with tempfile.TemporaryDirectory(prefix="muster-probe-") as folder:
        root = Path(folder)
        write_tree(root)
        rows = [*times(root, args.rounds), *memory(root, args.probes)]
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def times(root: Path, rounds: int) -> list[Row]:
    """Measure Muster and the floor in turns."""
    whole = Row("probe", f"{HCAS} HCAs x {GIDS} GIDs, read and judged", "ours", aim=Aim(AIM_MS))
    busy = Row("probe", "of it processor time", "ours")
    text = Row("probe", "the same and its text", "ours")
    floor = Row("probe", f"open, read, close of {HCAS * GIDS} GID files", "floor")
    gids = [str(path) for path in root.glob("sys/devices/**/gids/*")]
    for _ in range(rounds):
        before = time.process_time()
        whole.add(_took(lambda: probe(root)))
        busy.add((time.process_time() - before) * 1e3)
        text.add(_took(lambda: probe_text(probe(root))))
        floor.add(_took(lambda: _read_all(gids)))
    return [whole, busy, text, floor]


def memory(root: Path, probes: int) -> list[Row]:
    """Memory that many probes leave allocated: Python's blocks, and resident memory, which grows in
    MiB.
    """
    blocks = Row("memory", f"left by {probes} probes", "ours", "blocks", aim=Aim(BLOCKS_AIM))
    grown = Row("memory", "resident, of it", "ours", "KiB")
    for _ in range(_WARM_UP):
        probe(root)
    resident, held = _resident_kib(), sys.getallocatedblocks()
    for _ in range(probes):
        probe(root)
    grown.add(_resident_kib() - resident)
    blocks.add(sys.getallocatedblocks() - held)
    return [blocks, grown]


def write_tree(root: Path) -> None:
    """Write the sysfs tree of a node."""
    for number in range(HCAS):
        bus = number * 16
        host = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        switch = f"{host}/0000:{bus + 1:02x}:00.0"
        near = number < GPUS
        place = f"{switch}/0000:{bus + 2:02x}:01.0" if near else host
        hca = f"{place}/0000:{bus + 4:02x}:00.0"
        _function(root, hca, "0x020000", "0x15b3", "0x1021", number // 6)
        if near:
            gpu = f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0"
            _function(root, gpu, "0x030200", "0x10de", "0x2330", number // 6)
        _device(
            root, f"mlx5_{number}", f"sys/devices/{hca}", number, "MT4129" if near else "MT4125"
        )


def _function(root: Path, path: str, kind: str, vendor: str, device: str, numa: int) -> None:
    folder = f"sys/devices/{path}"
    files = {"class": kind, "vendor": vendor, "device": device, "numa_node": str(numa)}
    for name, text in files.items():
        _write(root / folder / name, text)
    link = root / "sys/bus/pci/devices" / folder.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../../{folder}")


def _device(root: Path, name: str, function: str, number: int, model: str) -> None:
    folder = root / function / "infiniband" / name
    for file, text in {"node_type": "1: CA", "hca_type": model, "fw_ver": "28.41.1000"}.items():
        _write(folder / file, text)
    (folder / "device").symlink_to("../..")
    link = root / "sys/class/infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../{function}/infiniband/{name}")
    port = folder / "ports/1"
    rate = "400 Gb/sec (4X NDR)" if model == "MT4129" else "100 Gb/sec (4X EDR)"
    own = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": "Ethernet"}
    for file, text in own.items():
        _write(port / file, text)
    local = f"fe80:0000:0000:0000:5054:00ff:fe00:{number:04x}"
    routable = f"0000:0000:0000:0000:0000:ffff:0a{number:02x}:0005"
    for index in range(GIDS):
        gid = (local, local, routable, routable)[index] if index < 4 else _EMPTY
        _write(port / "gids" / str(index), gid)
        if index < 4:
            _write(port / "gid_attrs/types" / str(index), ("IB/RoCE v1", "RoCE v2")[index % 2])
            _write(port / "gid_attrs/ndevs" / str(index), f"eth{number}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _read_all(paths: list[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 4096)
        os.close(fd)


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _resident_kib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="probes that are timed")
    parser.add_argument("--probes", type=int, default=1000, help="probes for the memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
