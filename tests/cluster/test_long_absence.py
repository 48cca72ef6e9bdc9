"""A coordinator that is away for longer than any lease ends no job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import (
    alive,
    await_file,
    await_running,
    limit_in,
    log_of,
    submit,
    until,
    wait,
)

LEASE_S = 6
SOON = {"MUSTER_COORDINATOR_HEARTBEAT_S": "1", "MUSTER_COORDINATOR_LEASE_S": f"{LEASE_S}"}

# Once the test says so, a rank counts more than three leases by its own clock.
OUTLIVES = f"""
import os, pathlib, time
rank = os.environ["RANK"]
with open(f"pids.{{rank}}", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
while not os.path.exists("away"):
    time.sleep(0.05)
time.sleep({3 * LEASE_S + 2})
pathlib.Path(f"outlived.{{rank}}").write_text("outlived\\n")
while not os.path.exists("go"):
    time.sleep(0.05)
print("rank", rank, "is done")
"""


@pytest.fixture
def short(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes; the lease of gangs ends soon."""
    made = LocalCluster(tmp_path / "cluster", agents=2, env={**PORTS, **SOON})
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_a_job_outlives_a_coordinator_that_is_away(tmp_path: Path) -> None:
    """A job of one node, a gang, and an elastic gang."""
    jobs = {}
    with LocalCluster(tmp_path / "cluster", agents=5, env={**PORTS, **SOON}) as cluster:
        for asked, nodes in ((1, 1), (2, 2), ("1..2", 2)):
            folder = tmp_path / f"of-{asked}"
            folder.mkdir()
            (folder / "outlives.py").write_text(OUTLIVES)
            job = submit(cluster, folder, nodes=asked, launcher="torchrun", run=["outlives.py"])
            jobs[job] = (nodes, folder)
        for job, (nodes, folder) in jobs.items():
            for rank in range(nodes):
                await_file(folder / f"pids.{rank}")
            await_running(cluster, job)
        cluster.coordinator.kill()
        for _, folder in jobs.values():
            (folder / "away").touch()
        for nodes, folder in jobs.values():
            for rank in range(nodes):
                await_file(folder / f"outlived.{rank}")
        cluster.coordinator.start()
        cluster.wait_for_nodes()
        for job, (nodes, folder) in jobs.items():
            assert cluster.client().job(int(job)).state is JobState.RUNNING
            (folder / "go").touch()
            assert wait(cluster, job) == 0
            assert len(cluster.client().job(int(job)).attempts) == 1
            for rank in range(nodes):
                assert f"rank {rank} is done" in log_of(cluster, job, "--rank", str(rank))
                assert len((folder / f"pids.{rank}").read_text().split()) == 1
    until(lambda: cluster.leftovers() == [], "no process of the cluster is left")


TERMS = 30
# Notes each lease term that it has run for.
COUNTS = f"""
import os, pathlib, sys, time
rank = os.environ["RANK"]
with open(f"pids.{{rank}}", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
while not os.path.exists("away"):
    time.sleep(0.05)
for term in range({TERMS}):
    time.sleep({LEASE_S})
    if term == 5:
        pathlib.Path(f"saved/step-{{term}}.{{rank}}").write_text("weights")
    pathlib.Path(f"term.{{rank}}.{{term}}").write_text("over\\n")
print("rank", rank, "is done", flush=True)
sys.exit(int(os.environ["ENDS_WITH"]))
"""


@pytest.mark.long
@pytest.mark.timeout(TERMS * LEASE_S + 180)
def test_a_gang_and_a_single_node_outlive_a_coordinator_for_thirty_leases(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", agents=3, env={**PORTS, **SOON}) as cluster:
        jobs = {}
        for nodes in (1, 2):
            folder = tmp_path / f"of-{nodes}"
            folder.mkdir()
            (folder / "counts.py").write_text(COUNTS)
            (folder / "saved").mkdir()
            name = submit(
                cluster,
                folder,
                nodes=nodes,
                launcher="torchrun",
                run=["counts.py"],
                env={"ENDS_WITH": "0" if nodes == 2 else "9"},
                checkpoint_dir=str(folder / "saved"),
            )
            jobs[name] = (nodes, folder)
        for name, (nodes, folder) in jobs.items():
            await_running(cluster, name)
            for rank in range(nodes):
                await_file(folder / f"pids.{rank}")
        cluster.coordinator.kill()
        for _, folder in jobs.values():
            (folder / "away").touch()
        for term in range(TERMS):
            for nodes, folder in jobs.values():
                for rank in range(nodes):
                    await_file(folder / f"term.{rank}.{term}")
        pids = [
            int((folder / f"pids.{rank}").read_text())
            for nodes, folder in jobs.values()
            for rank in range(nodes)
        ]
        until(lambda: not any(alive(pid) for pid in pids), "all ranks have ended by themselves")
        cluster.coordinator.start()
        cluster.wait_for_nodes()
        for name, (nodes, folder) in jobs.items():
            ends_with = 0 if nodes == 2 else 9
            assert wait(cluster, name) == ends_with
            (attempt,) = cluster.client().job(int(name)).attempts
            ranks = [rank for task in attempt.tasks for rank in task.ranks]
            assert [rank.exit for rank in ranks] == [ExitStatus(ends_with)] * nodes
            assert attempt.checkpoint is not None
            assert attempt.checkpoint.name.startswith("step-5.")
            for rank in range(nodes):
                assert f"rank {rank} is done" in log_of(cluster, name, "--rank", str(rank))
                assert len((folder / f"pids.{rank}").read_text().split()) == 1
    until(lambda: cluster.leftovers() == [], "no process of the cluster is left")


# Writes which signals it got, and exits well at the second.
WARNED = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def got(number, _):
    with open(f"got.{rank}", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        pathlib.Path(f"ended.{rank}").write_text("ended\\n")
        sys.exit(0)
signal.signal(signal.SIGUSR1, got)
signal.signal(signal.SIGTERM, got)
pathlib.Path(f"up.{rank}").write_text("up\\n")
while True:
    time.sleep(0.05)
"""


def test_a_job_ends_at_its_limit_while_the_coordinator_is_away(
    short: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "warned.py").write_text(WARNED)
    job = submit(
        short,
        tmp_path,
        nodes=2,
        launcher="torchrun",
        run=["warned.py"],
        stop={"warn": "USR1@5s", "grace": "60s"},
        time_limit="1h",
    )
    for rank in range(2):
        await_file(tmp_path / f"up.{rank}")
    await_running(short, job)
    limit_in(short, job, 10)
    short.coordinator.kill()
    for rank in range(2):
        await_file(tmp_path / f"ended.{rank}")
        assert (tmp_path / f"got.{rank}").read_text() == "SIGUSR1\nSIGTERM\n"
    short.coordinator.start()
    assert wait(short, job) == 124
    view = short.client().job(int(job))
    assert (view.state, len(view.attempts)) == (JobState.TIMEOUT, 1)
    assert re.fullmatch(r"the time limit of \d+ s is over", view.reason.text)


def test_a_changed_limit_is_kept_by_a_node_whose_agent_ends(
    short: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "warned.py").write_text(WARNED)
    job = submit(short, tmp_path, run=["warned.py"], launcher="torchrun", time_limit="1h")
    await_file(tmp_path / "up.0")
    await_running(short, job)
    limit_in(short, job, 8)
    short.coordinator.kill()
    for agent in short.nodes.values():
        agent.kill()
    await_file(tmp_path / "ended.0")
    for agent in short.nodes.values():
        agent.start()
    short.coordinator.start()
    assert wait(short, job) == 124
