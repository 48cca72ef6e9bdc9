"""A gang of `true` on more and more nodes, and the coordinator's processor time for each size.

64 real agents share the machine, so the elapsed time of a gang is mostly theirs and shown only for
information. The coordinator's processor time is measured by the kernel from before the submit until
every node has cleaned up. The slope over the sizes is the cost of a node.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of, settle
from benchmarks.launch.processor import processor_ms
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Row
from examples.local_cluster import ClusterError, LocalCluster

AGENTS = 64
SIZES = (2, 8, 32, 64)
_WARM_UP = 2


def main() -> int:
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    where = machine()
    print(f"starting {AGENTS} agents, which takes a minute", file=sys.stderr, flush=True)
    try:
        with cluster(AGENTS) as local:
            rows = measure(local, args.rounds)
    except KeyboardInterrupt:
        return 130
    except (ClusterError, Wrong, OSError) as error:
        print(f"stopped: {error}")
        return 1
    print(table(where, rows, []))
    if args.json is not None:
        write_json(args.json, where, rows, [])
    return 0


def measure(local: LocalCluster, rounds: int) -> list[Row]:
    """Sizes take turns, so that a busy period affects all of them."""
    used = {size: Row("scale", f"gang of {size}, its processor time", "ours") for size in SIZES}
    took = {size: Row("scale", f"gang of {size}, request -> ended", "ours") for size in SIZES}
    slope = Row("scale", "processor time for one more node", "ours")
    rest = Row("scale", f"{AGENTS} agents at rest, a second", "ours")
    connection = Connection(local)
    try:
        for number in range(-_WARM_UP, rounds):
            costs = {}
            for size in SIZES:
                cost, wall = _gang(local, connection, size)
                costs[size] = cost
                if number >= 0:
                    used[size].add(cost)
                    took[size].add(wall)
            if number >= 0:
                slope.add(least_squares(costs))
                rest.add(_at_rest(local))
    finally:
        connection.close()
    return [slope, *used.values(), *took.values(), rest]


def _gang(local: LocalCluster, connection: Connection, size: int) -> tuple[float, float]:
    """Milliseconds of the coordinator's processor time for one gang, and of elapsed time."""
    body = job_of(nodes=size, launcher="none", run=["true"])
    before, began = processor_ms(local.coordinator.pid), time.perf_counter()
    connection.wait(connection.submit(body))
    wall = (time.perf_counter() - began) * 1e3
    settle(local)
    return processor_ms(local.coordinator.pid) - before, wall


def _at_rest(local: LocalCluster) -> float:
    before, began = processor_ms(local.coordinator.pid), time.perf_counter()
    time.sleep(1.0)
    return (processor_ms(local.coordinator.pid) - before) / (time.perf_counter() - began)


def least_squares(costs: Mapping[int, float]) -> float:
    """The slope of the line through the points."""
    return statistics.linear_regression(list(costs), list(costs.values())).slope


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="gangs of each size")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
