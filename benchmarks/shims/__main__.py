"""Shims by start method: time until a shim accepts connections, and memory of each.

Units need a machine booted by systemd, and root. Elsewhere only forked shims are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from agent.core.shim_protocol import ShimKill, ShimRelease, ShimStatus
from agent.shims.backend import Shims, lacks_units
from agent.shims.connection import ShimConnection, connect
from agent.shims.forked import ForkServer
from agent.shims.systemd import SystemdUnits
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row

# Pause between two, because a fork server prepares the next one ahead.
PAUSE_S = 0.2
SIZE_AIM_MB = 20


def main() -> int:
    args = _arguments()
    where = machine()
    rows, notes = [], []
    lacking = lacks_units()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        rows += asyncio.run(measured("forked", ForkServer(), Path(folder), args.rounds))
        if lacking:
            notes.append(f"no units here: {lacking}")
        else:
            rows += asyncio.run(measured("unit", SystemdUnits(), Path(folder), args.rounds))
    print(table(where, rows, notes))
    if args.json is not None:
        write_json(args.json, where, rows, notes)
    return 0


async def measured(what: str, shims: Shims, folder: Path, rounds: int) -> list[Row]:
    start = Row("start", what, "ours")
    size = Row("memory", what, "ours", "MB", aim=Aim(SIZE_AIM_MB))
    await shims.start()
    try:
        for number in range(rounds):
            await asyncio.sleep(PAUSE_S)
            # No real cluster reaches this number.
            task = folder / f"{10**9 + number}.1.0"
            began = time.perf_counter()
            pid = await shims.spawn(task)
            start.add((time.perf_counter() - began) * 1000)
            size.add(memory_mb(pid))
            await _end(task)
    finally:
        await shims.close()
    return [start, size]


def memory_mb(pid: int) -> float:
    """Its private memory, and its share of the shared memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024 / 1e6


async def _end(task: Path) -> None:
    over = asyncio.Event()

    def heard(status: ShimStatus) -> None:
        if status.phase.terminal:
            over.set()

    connection: ShimConnection = await connect(task, heard)
    connection.send(ShimKill())
    await over.wait()
    connection.send(ShimRelease())
    await connection.ended
    await asyncio.to_thread(shutil.rmtree, task)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench shims", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
