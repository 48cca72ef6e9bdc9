"""Death of a rank, and a cancel: time until the gang has stopped and its nodes are free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.launch import slurm
from benchmarks.launch.cluster import Connection, cluster, job_of, settle
from benchmarks.launch.samples import Aim, Row
from benchmarks.recovery.restarts import reached
from examples.local_cluster import free_port

NODES = 4
_TORCHRUN_PATIENCE_S = 10.0
_SAY_PID = 'p="$0/pid.$MUSTER_NODE_RANK"; echo $$ > "$p.tmp"; mv "$p.tmp" "$p"; exec sleep 1000'
_RANK = """
import os, sys, time
name = f"{sys.argv[1]}/pid.{os.environ['RANK']}"
with open(f"{name}.tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{name}.tmp", name)
time.sleep(1000)
"""


def rank_death(rounds: int) -> Row:
    """Kill a rank of a gang of four; measure until no process of the others is left."""
    row = Row(
        "rank dies", f"-> the other {NODES - 1} nodes' ranks are gone", "ours", "ms", Aim(1000)
    )
    with cluster(NODES) as local:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
                settle(local)
                connection = Connection(local)
                run = ["/bin/sh", "-c", _SAY_PID, folder]
                job = connection.submit(job_of(launcher="none", nodes=NODES, run=run))
                pids = _pids(Path(folder), NODES)
                os.kill(pids[NODES - 1], signal.SIGKILL)
                row.add(reached(partial(_none_alive, pids), "the gang has stopped"))
                connection.call("GET", f"/v1/jobs/{job}/wait?timeout_s=30")
                connection.close()
    return row


def rank_death_torchrun(rounds: int) -> Row | None:
    """Two torchruns by hand with ranks in no collective; measure until the other node's rank is
    gone.
    """
    if find_spec("torch") is None:
        return None
    row = Row("rank dies", f"-> the other node's (looked at for {_TORCHRUN_PATIENCE_S:g} s)",
              "torchrun", "ms")  # fmt: skip
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
            script = Path(folder) / "rank.py"
            script.write_text(_RANK)
            port = str(free_port())
            launchers = [
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                        *(f"--node-rank={n}", "--master-addr=127.0.0.1", f"--master-port={port}"),
                        *("--nproc-per-node=1", str(script), folder),
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                for n in range(2)
            ]
            pids = _pids(Path(folder), 2)
            try:
                os.kill(pids[1], signal.SIGKILL)
                began = time.perf_counter()
                while alive(pids[0]) and time.perf_counter() - began < _TORCHRUN_PATIENCE_S:
                    time.sleep(0.005)
                row.add((time.perf_counter() - began) * 1e3)
            finally:
                for process in launchers:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                for pid in filter(alive, pids):
                    os.kill(pid, signal.SIGKILL)
    return row


def cancel(rounds: int) -> Row:
    """Time from the request until every node could take another job."""
    row = Row("cancel", f"-> {NODES} nodes are free", "ours", "ms", Aim(200))
    with cluster(NODES) as local:
        connection = Connection(local)
        for _ in range(rounds):
            settle(local)
            job = connection.submit(job_of(launcher="none", nodes=NODES, run=["sleep", "1000"]))
            reached(
                partial(_is, connection, job, "RUNNING"),
                "the job runs",
            )
            connection.call("POST", f"/v1/jobs/{job}/cancel", b"{}")
            row.add(reached(partial(_is, connection, job, "CANCELLED"), "the nodes are free"))
        connection.close()
    return row


def cancel_peer(rounds: int) -> Row:
    """scancel of an srun's job of the same size, until all nodes are idle."""
    row = Row("cancel", f"-> {NODES} nodes are free", "Slurm", "ms")
    with slurm.running(NODES) as there:
        for _ in range(rounds):
            there.settle()
            there.run("sbatch", f"-N{NODES}", "-o", "/dev/null", "--wrap", "srun sleep 1000")
            reached(lambda: there.idle_nodes() == 0, "the job runs")
            time.sleep(0.5)
            began = time.perf_counter()
            there.run("scancel", "-u", "root")
            reached(lambda: there.idle_nodes() == NODES, "the nodes are idle")
            row.add((time.perf_counter() - began) * 1e3)
    return row


def alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _none_alive(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def _is(connection: Connection, job: int, state: str) -> bool:
    return bool(connection.call("GET", f"/v1/jobs/{job}")["state"] == state)


def _pids(folder: Path, ranks: int) -> list[int]:
    files = [folder / f"pid.{rank}" for rank in range(ranks)]
    reached(lambda: all(file.exists() for file in files), "every rank runs")
    return [int(file.read_text()) for file in files]
