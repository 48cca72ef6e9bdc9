"""Logs: latency from a rank's write to a reader, throughput, and the effect of a storm on
others.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from pathlib import Path

from benchmarks.launch.cluster import Connection, Wrong, cluster
from benchmarks.launch.processor import processor_ms
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from benchmarks.logs import floor
from benchmarks.logs.jobs import python
from benchmarks.logs.reader import Follower
from benchmarks.logs.storm import storm
from examples.local_cluster import ClusterError

TICKS = 200
BURST_MIB = 256


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    rows: list[Row] = []
    code = 0
    try:
        for name in args.only or FIGURES:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            rows += FIGURES[name](args.rounds)
    except KeyboardInterrupt:
        code = 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        code = 1
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return code


def latency(rounds: int) -> list[Row]:
    """Print a line every 20 ms; measure its age when the reader has it."""
    middle = Row("latency", f"write -> reader, p50 of {TICKS} lines", "ours")
    high = Row("latency", f"write -> reader, p99 of {TICKS} lines", "ours", aim=Aim(50))
    with cluster(1) as local:
        connection = Connection(local)
        for _ in range(rounds):
            found: list[float] = []
            rest = bytearray()

            def took(data: bytes, found: list[float] = found, rest: bytearray = rest) -> None:
                now = time.time_ns()
                rest.extend(data)
                *lines, left = bytes(rest).split(b"\n")
                rest[:] = left
                found.extend((now - int(line)) / 1e6 for line in lines)

            job = connection.submit(python("ticks.py", TICKS))
            with Follower(local, job, took):
                connection.wait(job)
            cut = statistics.quantiles(found, n=100)
            middle.add(cut[49])
            high.add(cut[98])
        connection.close()
    return [middle, high]


def throughput(rounds: int) -> list[Row]:
    """Measure a rank that writes at full speed with a single reader; Muster and the floor in
    turns."""
    what = f"{BURST_MIB} MiB of one rank to one reader"
    rows = [
        Row("bytes", f"{what}, a core of the coordinator", "ours", "MB/s", Aim(100, least=True)),
        Row("bytes", f"{what}, on the clock, 4 processes on this machine", "ours", "MB/s"),
        Row("bytes", f"{what}, a core of the agent", "ours", "MB/s", Aim(300, least=True)),
        Row("bytes", f"{what}, a core of a bare aiohttp server", "floor", "MB/s"),
        Row("bytes", f"{what}, on the clock, 2 processes", "floor", "MB/s"),
    ]
    with cluster(2) as local:
        connection = Connection(local)
        for _ in range(rounds):
            size = [0]

            def took(data: bytes, size: list[int] = size) -> None:
                size[0] += len(data)

            pids = [local.coordinator.pid, local.nodes["node-1"].pid]
            before = [processor_ms(pid) for pid in pids]
            began = time.perf_counter()
            job = connection.submit(python("burst.py", BURST_MIB, 0, node="node-1"))
            with Follower(local, job, took):
                pass
            took_s = time.perf_counter() - began
            used = [(processor_ms(p) - was) / 1e3 for p, was in zip(pids, before, strict=True)]
            if size[0] != BURST_MIB << 20:
                raise Wrong(f"{size[0]} bytes came of {BURST_MIB << 20}")
            connection.wait(job)
            mb = size[0] / 1e6
            server_clock, server_core = floor.measure(BURST_MIB)
            values = (mb / used[0], mb / took_s, mb / used[1], server_core, server_clock)
            for row, value in zip(rows, values, strict=True):
                row.add(value)
        connection.close()
    return rows


FIGURES = {"latency": latency, "bytes": throughput, "storm": storm}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="repeats of each figure")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
