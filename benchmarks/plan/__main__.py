"""The fabric plan of a gang of 1,024 nodes, each with 8 or 12 HCAs: rails matched, compared and
set.

`alike` are identical nodes that differ only in their addresses. In `apart`, one node in sixteen
each has a slower RoCE port, a port that is down, and a GID at another index. The size of the fact
is its size in the journal and in each frame.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from muster.protocol.observations.fabric import FabricPort, MissingPort, NodeFabric, PortGids
from muster.spec.model import Rdma
from orchestrator.core.fabric.plan import FabricRequest, PlanRefused, plan
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import FabricPlan

NODES = 1024
AIM_MS = 200
KIB_AIM = 256
GPUS = 8
NCCL = (2, 22)
"""This version needs the GID index as a setting on each node."""


def main() -> int:
    args = _arguments()
    where = machine()
    rows = []
    for hcas in (8, 12):
        rows += times(hcas, args.rounds)
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def times(hcas: int, rounds: int) -> list[Row]:
    """Measure a gang of identical nodes and one of different nodes, in turns."""
    alike = [member(number, hcas) for number in range(NODES)]
    apart = [spoilt(number, hcas) for number in range(NODES)]
    name = f"{NODES} nodes x {hcas} HCAs"
    first = Row("plan", f"{name}, alike", "ours", aim=Aim(AIM_MS))
    second = Row("plan", f"{name}, some differ, preferred", "ours", aim=Aim(AIM_MS))
    third = Row("plan", f"{name}, some differ, required", "ours", aim=Aim(AIM_MS))
    size = Row("fact", f"{name}, alike", "ours", "KiB", aim=Aim(KIB_AIM))
    other = Row("fact", f"{name}, some differ", "ours", "KiB", aim=Aim(KIB_AIM))
    for _ in range(rounds):
        first.add(_took(lambda: plan(alike, FabricRequest(Rdma.REQUIRED))))
        second.add(_took(lambda: plan(apart, FabricRequest())))
        third.add(_took(lambda: plan(apart, FabricRequest(Rdma.REQUIRED))))
    size.add(_kib(plan(alike, FabricRequest(Rdma.REQUIRED))))
    other.add(_kib(plan(apart, FabricRequest())))
    reported = Row("report", f"one node of {hcas} HCAs", "ours", "KiB")
    reported.add(len(msgspec.json.encode(alike[0].fabric)) / 1024)
    return [first, second, third, size, other, reported]


def member(number: int, hcas: int, gid: int = 3) -> FabricMember:
    """Return a node of the gang."""
    ports = tuple(
        FabricPort(
            f"mlx5_{at}",
            1,
            f"0000:{16 * at + 8:02x}:00.0",
            "Ethernet",
            "MT4129",
            400.0,
            at // 6,
            netdev=f"eth{at}",
            mtu=9000,
            addresses=(f"10.{at}.{number // 256}.{number % 256}",),
            table=True,
            sparse=True,
            fourth=PortGids(gid, (gid,)),
            near=(at,) if at < GPUS else (),
        )
        for at in range(hcas)
    )
    fabric = NodeFabric(group="Ethernet MT4129", ports=ports, fingerprint=f"{number:016x}")
    return FabricMember(f"gpu-{number:04d}", fabric, ports, GPUS, NCCL)


def spoilt(number: int, hcas: int) -> FabricMember:
    """Return a faulty node of the gang."""
    found = member(number, hcas, gid=3 + 2 * (number % 16 == 3))
    ports = list(found.ports)
    fabric = found.fabric
    if number % 16 == 5:
        ports[1] = replace(ports[1], rate_gbps=200.0)
    if number % 16 == 7:
        down = ports.pop(2)
        fabric = replace(fabric, missing=(MissingPort(down.key, down.pci, "port DOWN, Polling"),))
    fabric = replace(fabric, ports=tuple(ports))
    return FabricMember(found.node, fabric, tuple(ports), GPUS, NCCL)


def _kib(found: FabricPlan | PlanRefused | None) -> float:
    assert isinstance(found, FabricPlan)
    return len(msgspec.json.encode(found)) / 1024


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench plan", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
