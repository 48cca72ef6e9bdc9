"""Nodes that are taken out of service while jobs run there, with real daemons."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.local_cluster import LocalCluster
from muster.http.views import NodeView
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, submit, until, wait

# Says who it is, and whether it was asked to end; a second run would show.
WAITS = """
trap 'echo asked >> asked' TERM
echo $$ $MUSTER_NODE_NAMES >> ran.$MUSTER_ATTEMPT
until [ -e go ]; do sleep 0.05; done
"""


def view(cluster: LocalCluster, name: str) -> NodeView:
    return cluster.client().node(name)


def resume_all(cluster: LocalCluster) -> None:
    cluster.muster("node", "resume", *cluster.nodes)


def became(cluster: LocalCluster, name: str, admin: str) -> None:
    until(lambda: view(cluster, name).admin == admin, f"{name} is {admin}")


def test_a_job_on_a_drained_node_runs_to_its_end(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=WAITS, placement={"include": ["node-1"]})
    await_file(tmp_path / "ran.1")
    said = cluster.muster("node", "drain", "node-1", "--reason", "bad DIMM")
    assert "node-1 draining: runs job" in said.stderr
    (tmp_path / "later").mkdir()
    later = submit(cluster, tmp_path / "later", run="true", placement={"include": ["node-1"]})
    explained = cluster.muster("explain", later).stdout
    assert "is drained by" in " ".join(explained.split())
    assert "bad DIMM" in cluster.muster("nodes").stdout
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    became(cluster, "node-1", "drained")
    (found,) = json.loads(
        cluster.muster("node", "drain", "node-1", "--reason", "bad DIMM", "--json").stdout
    )["nodes"]
    assert (found["admin"], found["drain"]["reason"]) == ("drained", "bad DIMM")
    assert cluster.client().job(int(later)).state is JobState.QUEUED
    assert "node-1 active" in cluster.muster("node", "resume", "node-1").stderr
    assert wait(cluster, later) == 0


@pytest.mark.parametrize("how", [("--now",), ("--deadline", "1s")], ids=("now", "deadline"))
def test_a_job_that_has_to_leave_starts_elsewhere(
    cluster: LocalCluster, tmp_path: Path, how: tuple[str, ...]
) -> None:
    job = submit(cluster, tmp_path, run=WAITS, stop={"grace": "1s"}, retry={"infra": 0})
    pid, node = await_file(tmp_path / "ran.1").split()
    cluster.muster("node", "drain", node, "--reason", "new board", *how)
    _, other = await_file(tmp_path / "ran.2").split()
    assert other != node
    assert not alive(int(pid))
    if "--deadline" in how:
        assert (tmp_path / "asked").exists()
    became(cluster, node, "drained")
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    first, _ = cluster.client().job(int(job)).attempts
    assert first.cause is not None
    assert first.cause.code.value == "drained"
    resume_all(cluster)


def test_a_drain_outlives_kill_9_of_the_coordinator_and_the_agent(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster = own_cluster
    job = submit(cluster, tmp_path, run=WAITS, placement={"include": ["node-1"]})
    pid, _ = await_file(tmp_path / "ran.1").split()
    cluster.muster("node", "drain", "node-1", "--reason", "bad DIMM")
    before = view(cluster, "node-1").drain
    for daemon in (cluster.coordinator, cluster.nodes["node-1"]):
        daemon.kill()
    for daemon in (cluster.coordinator, cluster.nodes["node-1"]):
        daemon.start()
    cluster.wait_for_nodes()
    found = view(cluster, "node-1")
    assert (found.admin, found.drain) == ("draining", before)
    assert alive(int(pid))
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    became(cluster, "node-1", "drained")
    assert len(cluster.client().job(int(job)).attempts) == 1


def test_a_node_that_is_away_is_not_resumed_unless_ordered(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    cluster.muster("node", "drain", "node-2", "--reason", "reboot")
    cluster.nodes["node-2"].kill()
    until(lambda: view(cluster, "node-2").link != "connected", "node-2 is away")
    refused = cluster.muster("node", "resume", "node-2", check=False)
    assert refused.returncode == 125
    assert "node-2 is not connected" in refused.stderr
    assert view(cluster, "node-2").admin == "drained"
    cluster.muster("node", "resume", "--no-check", "node-2")
    assert view(cluster, "node-2").admin == "active"


@pytest.fixture
def lemon(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four nodes; the interpreter of the first one has torch when the agent asks, and not when a
    job starts."""
    env = {**PORTS, "MUSTER_COORDINATOR_QUARANTINE_JOBS": "2"}
    made = LocalCluster(tmp_path / "cluster", agents=4, env=env)
    config = made.root / "config" / "node-1.yaml"
    settings: dict[str, Any] = yaml.safe_load(config.read_text())
    python = tmp_path / "python"
    asked = 'case "$2" in *find_spec*) echo True False; exit ;; esac'
    python.write_text(f'#!/bin/sh\n{asked}\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    config.write_text(yaml.safe_dump({**settings, "python": str(python)}))
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_a_node_that_fails_one_job_after_another_is_quarantined(
    lemon: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    jobs = []
    for _ in range(2):
        job = submit(
            lemon, tmp_path, launcher="torchrun", nproc_per_node=1, run="hello.py", retry=1
        )
        assert wait(lemon, job) == 0
        jobs.append(int(job))
    found = view(lemon, "node-1")
    assert found.admin == "drained"
    assert found.drain is not None
    assert (found.drain.user, found.drain.quarantine) == ("muster", True)
    assert list(found.drain.jobs) == jobs
    assert f"at fault in 2 jobs ({jobs[0]}, {jobs[1]})" in found.drain.reason
    # The next one does not go there first.
    job = submit(lemon, tmp_path, launcher="torchrun", nproc_per_node=1, run="hello.py")
    assert wait(lemon, job) == 0
    assert len(lemon.client().job(int(job)).attempts) == 1
    lemon.muster("node", "resume", "node-1")
    assert view(lemon, "node-1").faults == ()
