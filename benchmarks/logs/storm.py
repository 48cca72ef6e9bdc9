"""The effect of a log storm on one node on a job on another node.

On separate machines, the writing node would have its own cores and disk. So here it shares an
exclusive core with the reader, and has its state directory in memory.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of
from benchmarks.launch.samples import Aim, Row
from benchmarks.logs.jobs import PROGRAMS, python
from examples.local_cluster import Daemon, LocalCluster
from muster.client import load_settings

MIB_S = 1000
LASTS_S = 2
BEGUN_MIB = 100
ARRIVES_S = 120.0
SAMPLES = 10
NODE, OTHER = "node-1", "node-2"


@dataclass
class Apart(LocalCluster):
    """A cluster whose first node has the last core, with its state directory in `memory`."""

    memory: Path = Path("/dev/shm")  # noqa: S108

    def _daemon(self, name: str, argv: list[str]) -> Daemon:
        return super()._daemon(name, _on_core(argv, storms=name == NODE))

    def _place(self, number: int) -> dict[str, object]:
        place = super()._place(number)
        return {**place, "state_dir": str(self.memory)} if number == 1 else place


def storm(rounds: int) -> list[Row]:
    """Run `true` on one node, while the other one's rank writes and a reader follows, and without
    load.
    """
    during = f"while another node's rank writes {MIB_S} MiB/s and a reader follows"
    at_rest = Row("control", "submit -> started, `true`, nothing else", "ours")
    in_storm = Row("control", f"the same {during}", "ours")
    ratio = Row("control", "the second / the first, medians", "ours", "ratio", Aim(2))
    if len(os.sched_getaffinity(0)) < 2:
        raise Wrong("a storm needs two cores: one for the node that storms, one for the others")
    with (
        tempfile.TemporaryDirectory(prefix="muster-bench-", dir="/dev/shm") as memory,
        cluster(2, lambda root, agents: Apart(root, agents, memory=Path(memory))) as local,
    ):
        connection = Connection(local)
        for _ in range(rounds):
            os.sync()  # the disk is busy until earlier data are written
            rest = [_started_ms(local, connection) for _ in range(SAMPLES)]
            job = connection.submit(python("burst.py", MIB_S * LASTS_S, MIB_S, node=NODE))
            with _following(local, job):
                busy = [_started_ms(local, connection) for _ in range(SAMPLES)]
            connection.wait(job)
            for sample in rest:
                at_rest.add(sample)
            for sample in busy:
                in_storm.add(sample)
            ratio.add(statistics.median(busy) / statistics.median(rest))
        connection.close()
    return [at_rest, in_storm, ratio]


@contextlib.contextmanager
def _following(local: LocalCluster, job: int) -> Iterator[None]:
    """Yield a reader of a storm once some of it has arrived. Raises Wrong if all of it has arrived
    by the end.
    """
    argv = [sys.executable, str(PROGRAMS / "follow.py"), str(local.port), str(job)]
    environ = {**local.base_env(), "MUSTER_TOKEN": load_settings(local.base_env()).token}
    with tempfile.TemporaryFile() as out:
        reader = subprocess.Popen(_on_core(argv, storms=True), env=environ, stdout=out)
        try:
            while os.fstat(out.fileno()).st_size < BEGUN_MIB << 20:
                time.sleep(0.05)
                if reader.poll() is not None:
                    raise Wrong("the reader of the storm ended before it began")
            yield
            if os.fstat(out.fileno()).st_size >= (MIB_S * LASTS_S) << 20:
                raise Wrong("the storm was over before it was measured")
            # The system is idle only when everything has been delivered.
            reader.wait(ARRIVES_S)
        finally:
            reader.kill()
            reader.wait()


def _on_core(argv: list[str], *, storms: bool) -> list[str]:
    *others, last = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", ",".join(map(str, [last] if storms else others)), *argv]


def _started_ms(local: LocalCluster, connection: Connection) -> float:
    began = time.time()
    job = connection.submit(job_of(launcher="none", run=["true"], placement={"include": [OTHER]}))
    connection.wait(job)
    started = connection.call("GET", f"/v1/jobs/{job}")["started_at"]
    _settle(local)
    return (datetime.fromisoformat(started).timestamp() - began) * 1e3


def _settle(local: LocalCluster) -> None:
    """Wait until the other node has cleaned up; the first is busy on purpose."""
    deadline = time.monotonic() + 10
    folder = local.root / "state" / OTHER / "tasks"
    while any(folder.glob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)
