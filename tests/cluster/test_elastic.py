"""A gang under c10d that starts with what there is, and grows and shrinks while it runs."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from muster.http.views import JobView
from muster.protocol.states import JobState
from tests.cluster.jobs import (
    assert_forked,
    await_file,
    await_running,
    environments,
    submit,
    until,
    wait,
)

# Some minutes: torch has to start six times, and 15 s pass before a node counts as gone.
pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(400)]
pytest.importorskip("torch", reason="torch is not installed")

# Says who is there, then works until it may end: an all-reduce a round, in which all agree.
WORKS = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
world = dist.get_world_size()
print(f"world of {world}", flush=True)
while True:
    ends = torch.tensor([float(os.path.exists("go"))])
    dist.all_reduce(ends)
    if ends.item() == world:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


def worlds(cluster: LocalCluster, job: str) -> list[str]:
    printed = cluster.muster("logs", "--rank", "all", "--no-prefix", job).stdout
    return re.findall(r"^world of (\d+)$", printed, re.MULTILINE)


def view_of(cluster: LocalCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


def launchers(cluster: LocalCluster, job: str, node_rank: int) -> list[int]:
    """The torchrun of a node (its bootstrap): of a task, the process that is no rank."""
    return [
        pid
        for pid, variables in environments(cluster).items()
        if f"MUSTER_TASK={job}.1.{node_rank}" in variables
        and not any(variable.startswith("LOCAL_RANK=") for variable in variables)
    ]


def test_a_gang_grows_shrinks_and_comes_back(own_cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    holder = submit(own_cluster, tmp_path, run="until [ -e first ]; do sleep 0.05; done")
    job = submit(
        own_cluster,
        tmp_path,
        launcher="torchrun",
        nodes="1..2",
        run="works.py",
        stop={"grace": "1s"},
    )
    until(lambda: worlds(own_cluster, job) == ["1"], "it starts with the node that is free")
    assert "1 of 1..2 nodes: whenever torchrun starts its ranks, it first waits 6 s" in (
        view_of(own_cluster, job).reason.text
    )
    (tmp_path / "first").touch()
    assert wait(own_cluster, holder) == 0
    until(lambda: worlds(own_cluster, job).count("2") == 2, "the other node has joined")
    assert view_of(own_cluster, job).state is JobState.RUNNING

    # A waiting job gets the node as soon as the node has left the gang.
    holder = submit(own_cluster, tmp_path, run="until [ -e second ]; do sleep 0.05; done")
    (torchrun,) = launchers(own_cluster, job, 1)
    os.kill(torchrun, signal.SIGKILL)
    until(lambda: worlds(own_cluster, job).count("1") == 2, "the first goes on alone")
    await_running(own_cluster, holder)
    (tmp_path / "second").touch()
    assert wait(own_cluster, holder) == 0
    until(lambda: worlds(own_cluster, job).count("2") == 4, "the node has come back")

    (tmp_path / "go").touch()
    assert wait(own_cluster, job) == 0
    view = view_of(own_cluster, job)
    (attempt,) = view.attempts
    places = [(task.node_rank, task.left is None) for task in attempt.tasks]
    assert places == [(0, True), (1, False), (2, True)]
    assert_forked(own_cluster, job)
    assert sum("joins" in step.text for step in view.timeline) == 2
    until(lambda: own_cluster.survivors() == [], "no process of the job is left")


@pytest.mark.root
def test_a_gang_goes_on_when_a_machine_loses_its_power(
    machines: NamespaceCluster, tmp_path: Path
) -> None:
    (tmp_path / "works.py").write_text(WORKS)
    job = submit(
        machines,
        tmp_path,
        launcher="torchrun",
        nodes="1..2",
        run="works.py",
        stop={"grace": "1s"},
    )
    until(lambda: worlds(machines, job) == ["2", "2"], "both work")
    machines.machines["node-2"].power_off()
    # It waits for the machine that comes back, which so does not join the gang again.
    holder = submit(machines, tmp_path, run="echo > held; until [ -e over ]; do sleep 0.05; done")
    machines.boot("node-2")
    await_file(tmp_path / "held")
    until(lambda: "1" in worlds(machines, job), "the first goes on alone")
    assert view_of(machines, job).state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert wait(machines, job) == 0
    (tmp_path / "over").touch()
    assert wait(machines, holder) == 0
    ended = view_of(machines, job)
    assert ended.state is JobState.SUCCEEDED
    (attempt,) = ended.attempts
    launcher, worker = attempt.tasks
    assert (launcher.node, launcher.left) == ("node-1", None)
    assert worker.node == "node-2"
    assert worker.left is not None
    print(f"node-2 left: {worker.left}")
    assert any("node-2" in step.text and worker.left in step.text for step in ended.timeline)
