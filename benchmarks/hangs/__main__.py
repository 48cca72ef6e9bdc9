"""`python -m benchmarks.hangs`: precision, recall and delay of verdicts on labelled traces, and the
cost of monitoring for an agent.

The traces are judged by the rules themselves, in virtual time: the delays are those of the shipped
configuration, from the time at which a job began to hang. The cost is measured on real processes of
this machine, `--ranks` of them that sleep, each with a thread and a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agent.core.shim_protocol import ShimPhase, ShimRank, ShimStatus
from agent.monitors.hangs.monitor import HangMonitor
from benchmarks.hangs.score import Score, score
from benchmarks.hangs.traces import cases
from muster.daemon.clock import SystemClock
from muster.protocol.ids import TaskId
from tests.agent.shims.shim_of import be_shim_of

PERIOD_S = 5.0
AIM_S = 90.0
AIM_SHARE = 0.5
TASK = TaskId("1.1.0")
RANK = """
import socket, threading, time
a = socket.create_server(("127.0.0.1", 0)); b = socket.create_connection(a.getsockname())
c, _ = a.accept(); c.sendall(b"x" * 1000)
for _ in range(64):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def main() -> int:
    args = _arguments()
    found = score(cases(seed=args.seed, each=args.each))
    print_score(found)
    bare = score(cases(seed=args.seed, each=max(1, args.each // 4)), stacks=False)
    print(f"without py-spy: recall {bare.recall:.0%} of {bare.hangs}")
    took = cost(args.ranks, args.looks)
    share = 100 * statistics.mean(took) / PERIOD_S
    print(
        f"\nwatching {args.ranks} silent ranks of 65 threads: {1e3 * statistics.mean(took):.1f} ms "
        f"of CPU a look, {share:.2f} % of a core (aim {AIM_SHARE} %)"
    )
    return 0 if not (found.false_alarms or found.missed) else 1


def print_score(found: Score) -> None:
    """Print the table, and every wrong case."""
    named = 1 - len(found.misnamed) / max(found.found, 1)
    print(
        f"{found.cases} traces, {found.hangs} of them hang: precision {found.precision:.1%}, "
        f"recall {found.recall:.1%}, the rank named {named:.1%}"
    )
    print(f"\n{'HANG':<32}{'CASES':>6}{'MEDIAN':>9}{'WORST':>8}   (seconds; aim {AIM_S:g})")
    for name, delays in sorted(found.delays.items()):
        median, worst = statistics.median(delays), max(delays)
        print(f"{name:<32}{len(delays):>6}{median:>9.1f}{worst:>8.1f}")
    for label, wrong in (
        ("false alarm", found.false_alarms),
        ("missed", found.missed),
        ("wrong rank", found.misnamed),
        ("slow", found.misjudged_slow),
    ):
        for text in wrong:
            print(f"{label}: {text}")


def cost(count: int, looks: int) -> list[float]:
    """CPU seconds of each sample of `count` silent ranks, the most expensive case."""
    with tempfile.TemporaryDirectory() as name, processes(count) as pids:
        folder = Path(name)
        be_shim_of(folder)
        watch = HangMonitor(SystemClock(), lambda _: None, PERIOD_S, root=folder)
        ranks = tuple(
            ShimRank(rank=at, local_rank=at, pid=pid, stdout="out", stderr="err")
            for at, pid in enumerate(pids)
        )
        watch.heard(TASK, folder, ShimStatus(task=TASK, phase=ShimPhase.RUNNING, ranks=ranks))

        async def look() -> list[float]:
            took = []
            for _ in range(looks + 3):
                began = time.process_time()
                await watch.look()
                took.append(time.process_time() - began)
            return took[3:]

        return asyncio.run(look())


@contextlib.contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """Start sleeping ranks."""
    begun: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True
            )
            begun.append(process)
        for process in begun:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in begun]
    finally:
        for process in begun:
            process.kill()
            process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hangs", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--each", type=int, default=11, help="traces of each kind")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--looks", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
