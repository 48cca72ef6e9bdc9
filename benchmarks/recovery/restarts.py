"""Kill and restart of a daemon: time until it serves again, with running jobs."""

from __future__ import annotations

import contextlib
import http.client
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.launch import slurm
from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import LocalCluster
from tests.cluster.crowd import Crowd

AGENTS = 100
_PATIENCE_S = 60.0
_PRINT = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.01; done"


def reached(that: Callable[[], bool], what: str) -> float:
    """Milliseconds until the condition holds, polled every one or two."""
    began = time.perf_counter()
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, Wrong):
            if that():
                return (time.perf_counter() - began) * 1e3
        if time.perf_counter() - began > _PATIENCE_S:
            raise Wrong(f"not in {_PATIENCE_S:g} s: {what}")
        time.sleep(0.001)


def coordinator(rounds: int) -> list[Row]:
    """With 100 agents, each running a job."""
    serving = Row("coordinator", f"killed -> serves, {AGENTS} agents", "ours", "ms", Aim(1000))
    adopted = Row("coordinator", f"killed -> {AGENTS} jobs adopted", "ours", "ms", Aim(1000))
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        local = LocalCluster(Path(folder), agents=0)
        token = yaml.safe_load((local.root / "config" / "agent.yaml").read_text())["token_file"]
        with local, Crowd(AGENTS, _url(local), local.root / "config" / token) as crowd:
            members = crowd.members
            reached(lambda: all(m.welcomes for m in members), "every agent has been welcomed")
            connection = Connection(local)
            for member in members:
                wanted = {"include": [member.name]}
                connection.submit(job_of(launcher="none", run=["true"], placement=wanted))
            reached(lambda: all(m.runs for m in members), "every agent runs a task")
            for _ in range(rounds):
                before = [m.welcomes for m in members]
                local.coordinator.kill()
                local.coordinator.start()
                first = reached(lambda: _ready(local), "the coordinator serves")
                more = reached(
                    lambda before=before: all(  # type: ignore[misc]
                        m.welcomes > n for m, n in zip(members, before, strict=True)
                    ),
                    "every agent is back",
                )
                serving.add(first)
                adopted.add(first + more)
            running = Connection(local).call("GET", "/v1/jobs?state=RUNNING&limit=1000")["jobs"]
            if len(running) != AGENTS:
                raise Wrong(f"{len(running)} of {AGENTS} jobs run")
    return [serving, adopted]


def coordinator_peer(rounds: int) -> Row:
    """slurmctld with defaults, one node and one job; includes the time of the command."""
    row = Row("coordinator", "killed -> its job is seen to run, 1 node", "Slurm", "ms")
    with slurm.running(1) as there:
        said = there.run("sbatch", "-o", "/dev/null", "--wrap", "sleep 1000")
        job = said.split()[-1]
        reached(lambda: there.knows_running(job), "the job runs")
        for _ in range(rounds):
            there.kill_controller()
            began = time.perf_counter()
            there.start_controller()
            reached(lambda: there.knows_running(job), "the job is seen")
            row.add((time.perf_counter() - began) * 1e3)
        there.run("scancel", job)
    return row


def agent(rounds: int) -> list[Row]:
    """A real agent with a rank that prints a line every 10 ms."""
    back = Row("agent", "killed -> its job is seen again", "ours", "ms", Aim(500))
    lost = Row("agent", "lines of the log that are missing", "ours", "lines", Aim(0))
    with cluster(1) as local:
        connection = Connection(local)
        job = connection.submit(job_of(launcher="none", run=_PRINT))
        reached(lambda: _state(connection, job) == "RUNNING", "the job runs")
        (daemon,) = local.nodes.values()
        for _ in range(rounds):
            daemon.kill()
            reached(lambda: _link(connection) != "connected", "the coordinator has noticed")
            daemon.start()
            back.add(reached(lambda: _link(connection) == "connected", "the agent is back"))
        time.sleep(0.2)
        connection.call("POST", f"/v1/jobs/{job}/cancel", b"{}")
        connection.call("GET", f"/v1/jobs/{job}/wait?timeout_s=30")
        connection.close()
        lines = local.muster("logs", str(job)).stdout.splitlines()
        lost.add(sum(line != f"line {n}" for n, line in enumerate(lines, 1)))
    return [back, lost]


def _url(local: LocalCluster) -> str:
    return f"http://127.0.0.1:{local.port}"


def _ready(local: LocalCluster) -> bool:
    http_ = http.client.HTTPConnection("127.0.0.1", local.port, timeout=5)
    try:
        http_.request("GET", "/readyz")
        return http_.getresponse().status == 200
    finally:
        http_.close()


def _state(connection: Connection, job: int) -> str:
    return str(connection.call("GET", f"/v1/jobs/{job}")["state"])


def _link(connection: Connection) -> str:
    (node,) = connection.call("GET", "/v1/nodes")["nodes"]
    return str(node["link"])
