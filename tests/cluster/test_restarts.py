"""An agent that crashes again and again: its node gets no more jobs, and its job runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_file, await_running, submit, until, wait

RESTARTS = 2


@pytest.fixture
def four(tmp_path: Path) -> Iterator[LocalCluster]:
    env = {**PORTS, "MUSTER_COORDINATOR_QUARANTINE_RESTARTS": str(RESTARTS)}
    made = LocalCluster(tmp_path / "cluster", agents=4, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.mark.fault(9)
def test_its_node_is_drained_and_its_job_runs_on(four: LocalCluster, tmp_path: Path) -> None:
    job = submit(
        four,
        tmp_path,
        placement={"include": ["node-2"]},
        run="echo $$ > pid; until [ -e go ]; do sleep 0.05; done",
    )
    pid = await_file(tmp_path / "pid")
    await_running(four, job)
    agent, client = four.nodes["node-2"], four.client()
    for _ in range(RESTARTS + 1):
        assert client.node("node-2").admin == "active"
        agent.kill()
        until(lambda: client.node("node-2").link != "connected", "it is away")
        agent.start()
        until(lambda: client.node("node-2").link == "connected", "it is back")
    drained = client.node("node-2")
    assert drained.admin == "draining"
    assert drained.drain is not None
    assert drained.drain.user == "muster"
    assert f"its agent has started {RESTARTS + 1} times in 10 minutes" in drained.drain.reason
    await_running(four, job)
    (tmp_path / "go").touch()
    assert wait(four, job) == 0
    assert (tmp_path / "pid").read_text() == pid
    assert len(client.job(int(job)).attempts) == 1
    four.muster("node", "resume", "node-2")
    assert client.node("node-2").admin == "active"
