"""Logs: from a rank's write to a reader, how much at a time, and what a storm costs others."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of
from benchmarks.launch.processor import processor_ms
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from benchmarks.logs import floor
from benchmarks.logs.reader import Follower
from examples.local_cluster import ClusterError, LocalCluster
from muster.client import load_settings

PROGRAMS = Path(__file__).resolve().parent / "programs"
TICKS = 200
BURST_MIB = 256
STORM_MIB_S = 100
STORM_S = 10


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    rows: list[Row] = []
    code = 0
    try:
        with cluster(2) as local:
            connection = Connection(local)
            for name in args.only or FIGURES:
                print(f"measuring {name}", file=sys.stderr, flush=True)
                rows += FIGURES[name](local, connection, args.rounds)
            connection.close()
    except KeyboardInterrupt:
        code = 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        code = 1
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return code


def latency(local: LocalCluster, connection: Connection, rounds: int) -> list[Row]:
    """A line every 20 ms; how long ago it was written when the reader has it."""
    middle = Row("latency", f"write -> reader, p50 of {TICKS} lines", "ours")
    high = Row("latency", f"write -> reader, p99 of {TICKS} lines", "ours", aim=Aim(50))
    for _ in range(rounds):
        found: list[float] = []
        rest = bytearray()

        def took(data: bytes, found: list[float] = found, rest: bytearray = rest) -> None:
            now = time.time_ns()
            rest.extend(data)
            *lines, left = bytes(rest).split(b"\n")
            rest[:] = left
            found.extend((now - int(line)) / 1e6 for line in lines)

        job = connection.submit(_python("ticks.py", TICKS))
        with Follower(local, job, took):
            connection.wait(job)
        cut = statistics.quantiles(found, n=100)
        middle.add(cut[49])
        high.add(cut[98])
    return [middle, high]


def throughput(local: LocalCluster, connection: Connection, rounds: int) -> list[Row]:
    """One rank writes as fast as it can, one reader follows; ours and the floor take turns."""
    what = f"{BURST_MIB} MiB of one rank to one reader"
    rows = [
        Row("bytes", f"{what}, a core of the coordinator", "ours", "MB/s", Aim(100, least=True)),
        Row("bytes", f"{what}, on the clock, 4 processes on this machine", "ours", "MB/s"),
        Row("bytes", f"{what}, a core of the agent", "ours", "MB/s", Aim(300, least=True)),
        Row("bytes", f"{what}, a core of a bare aiohttp server", "floor", "MB/s"),
        Row("bytes", f"{what}, on the clock, 2 processes", "floor", "MB/s"),
    ]
    for _ in range(rounds):
        size = [0]

        def took(data: bytes, size: list[int] = size) -> None:
            size[0] += len(data)

        pids = [local.coordinator.pid, local.nodes["node-1"].pid]
        before = [processor_ms(pid) for pid in pids]
        began = time.perf_counter()
        job = connection.submit(_python("burst.py", BURST_MIB, 0, node="node-1"))
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
    return rows


def storm(local: LocalCluster, connection: Connection, rounds: int) -> list[Row]:
    """`true` on one node, while the other one's rank writes and a reader follows, and at rest."""
    during = f"while another node's rank writes {STORM_MIB_S} MiB/s and a reader follows"
    at_rest = Row("control", "submit -> started, `true`, nothing else", "ours")
    in_storm = Row("control", f"the same {during}", "ours")
    ratio = Row("control", "the second / the first, medians", "ours", "ratio", Aim(2))
    for _ in range(rounds):
        rest = [_started_ms(local, connection) for _ in range(10)]
        body = _python("burst.py", STORM_MIB_S * STORM_S, STORM_MIB_S, node="node-1")
        job = connection.submit(body)
        with _following(local, job):
            busy = [_started_ms(local, connection) for _ in range(10)]
            still = connection.call("GET", f"/v1/jobs/{job}")["ended_at"] is None
            connection.wait(job)
        if not still:
            raise Wrong("the storm was over before it was measured")
        for sample in rest:
            at_rest.add(sample)
        for sample in busy:
            in_storm.add(sample)
        ratio.add(statistics.median(busy) / statistics.median(rest))
    return [at_rest, in_storm, ratio]


@contextlib.contextmanager
def _following(local: LocalCluster, job: int) -> Iterator[None]:
    """A reader of a storm, once a second of it has arrived."""
    argv = [sys.executable, str(PROGRAMS / "follow.py"), str(local.port), str(job)]
    environ = {**local.base_env(), "MUSTER_TOKEN": load_settings(local.base_env()).token}
    with tempfile.TemporaryFile() as out:
        reader = subprocess.Popen(argv, env=environ, stdout=out)
        try:
            while os.fstat(out.fileno()).st_size < STORM_MIB_S << 20:
                time.sleep(0.05)
                if reader.poll() is not None:
                    raise Wrong("the reader of the storm ended before it began")
            yield
        finally:
            reader.kill()
            reader.wait()


def _started_ms(local: LocalCluster, connection: Connection) -> float:
    began = time.time()
    job = connection.submit(
        job_of(launcher="none", run=["true"], placement={"include": ["node-2"]})
    )
    connection.wait(job)
    started = connection.call("GET", f"/v1/jobs/{job}")["started_at"]
    settle_node(local)
    return (datetime.fromisoformat(started).timestamp() - began) * 1e3


def settle_node(local: LocalCluster) -> None:
    """Until the second node has tidied up; the first is busy on purpose."""
    deadline = time.monotonic() + 10
    folder = local.root / "state" / "node-2" / "tasks"
    while any(folder.glob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)


def _python(program: str, *args: object, node: str = "node-1") -> bytes:
    argv = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    return job_of(launcher="none", run=argv, placement={"include": [node]})


FIGURES = {"latency": latency, "bytes": throughput, "storm": storm}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="repeats of each figure")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
