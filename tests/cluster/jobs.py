"""Jobs for tests with real daemons, and waiting for what they do."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState

PATIENCE_S = 180.0


def submit(cluster: LocalCluster, tmp_path: Path, **job: Any) -> str:
    """Submit a job of plain commands, in a folder of its own, and return its id."""
    spec = {"name": "test", "launcher": "none", "workdir": str(tmp_path), **job}
    file = tmp_path / f"job-{time.monotonic_ns()}.yaml"
    file.write_text(yaml.safe_dump(spec))
    return cluster.muster("submit", "-f", str(file)).stdout.strip()


def wait(cluster: LocalCluster, job: str) -> int:
    """Wait for the end of a job; its exit code as `muster wait` returns it."""
    return cluster.muster("wait", "--timeout", "300s", job, check=False).returncode


def assert_forked(cluster: LocalCluster, job: str) -> None:
    """Assert that the ranks of each node of the last attempt were started by fork."""
    tasks = cluster.client().job(int(job)).attempts[-1].tasks
    starts = {task.node: (task.start.method, task.start.why) for task in tasks if task.start}
    assert starts == {task.node: ("fork", "") for task in tasks}


def until(reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something that sends no event, a file or a process of another program."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, f"not in {patience_s:g} s: {what}"
        time.sleep(0.01)


def await_file(path: Path) -> str:
    """Wait until a job has written `path` whole: it ends with a newline."""
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} written")
    return path.read_text()


def await_running(cluster: LocalCluster, job: str) -> None:
    """Wait until the coordinator knows that a job runs: what its ranks write comes before."""
    until(lambda: cluster.client().job(int(job)).state is JobState.RUNNING, f"job {job} runs")


def logs(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `muster logs` once the whole log has been delivered, which may be after the job's end."""
    found: list[subprocess.CompletedProcess[str]] = []

    def delivered() -> bool:
        found[:] = [cluster.muster("logs", *words, check=False)]
        return found[0].returncode == 0

    until(delivered, f"the log is delivered: {' '.join(words)}")
    return found[0]


def log_of(cluster: LocalCluster, job: str, *options: str) -> str:
    """Return the log of a job, once all of it has been delivered."""
    return logs(cluster, "--no-prefix", *options, job).stdout


def limit_in(cluster: LocalCluster, job: str, seconds: float) -> None:
    """Give a job that runs a time limit that is over in `seconds` from now.

    A limit from the start would count while a busy machine still starts the program.
    """
    client = cluster.client()
    began = client.job(int(job)).started_at
    assert began is not None
    limit_s = math.ceil(time.time() - began.timestamp() + seconds)
    client.change(int(job), {"time_limit": f"{limit_s}s"})
    until(lambda: not client.job(int(job)).limit_pending, f"the nodes know the limit of job {job}")


def alive(pid: int) -> bool:
    """True if a process runs; one that is dead and not yet reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it may end between the opening and the reading
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def environments(cluster: LocalCluster) -> dict[int, set[str]]:
    """Return the environments of processes of this cluster's jobs, by pid: other tests have jobs of
    the same numbers at the same time. A launcher has no path of the cluster in its environment, its
    shim has."""
    root, found = str(cluster.root), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = _environ(folder)
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if root in text or root in _environ(Path("/proc", parent)):
                found[int(folder.name)] = set(text.split("\0"))
    return found


def _environ(process: Path) -> str:
    return (process / "environ").read_bytes().decode(errors="replace")


def pid_of(cluster: LocalCluster, job: str, rank: int) -> int:
    """The process of a rank."""
    wanted = {f"MUSTER_JOB_ID={job}", f"RANK={rank}"}
    found = [pid for pid, variables in environments(cluster).items() if wanted <= variables]
    assert found, f"rank {rank} of job {job} does not run"
    return found[0]
