"""A coordinator that restarts under a thousand agents: all are back, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from examples.local_cluster import LocalCluster
from muster.client import Client, ClientError
from muster.protocol.states import JobState
from tests.cluster.crowd import Crowd
from tests.cluster.jobs import until

AGENTS = 1000
BUSY, WAITING = 100, 20
# All thousand agents share one thread: on a loaded machine a heartbeat is late by many seconds.
HEARTBEAT_S = 30

pytestmark = pytest.mark.long


def connected(client: Client) -> int:
    try:
        return sum(node.link == "connected" for node in client.nodes().nodes)
    except ClientError:
        return 0


def states(client: Client) -> dict[int, JobState]:
    return {job.id: job.state for job in client.all_jobs().jobs}


@pytest.mark.fault(4, 55)
def test_a_thousand_agents_come_back_with_what_they_have(
    tmp_path: Path, measured: Callable[[int, float], None]
) -> None:
    env = {"MUSTER_COORDINATOR_HEARTBEAT_S": str(HEARTBEAT_S)}
    cluster = LocalCluster(tmp_path / "cluster", agents=0, env=env)
    try:
        storm(cluster, measured)
    finally:
        cluster.stop()
    until(lambda: cluster.leftovers() == [], "no process of the cluster is left")


def storm(cluster: LocalCluster, measured: Callable[[int, float], None]) -> None:
    token = yaml.safe_load((cluster.root / "config" / "agent.yaml").read_text())["token_file"]
    cluster.coordinator.start()
    cluster.wait_for_nodes()
    client = cluster.client()
    url = f"http://127.0.0.1:{cluster.port}"
    with Crowd(AGENTS, url, cluster.root / "config" / token) as crowd:
        members = crowd.members
        until(lambda: all(m.welcomes for m in members), "all are there")
        spec = {"name": "storm", "launcher": "none", "run": ["true"], "workdir": "/"}
        acked = [
            client.submit({**spec, "placement": {"include": [members[n % BUSY].name]}}).id
            for n in range(BUSY + WAITING)
        ]
        until(lambda: all(m.runs for m in members[:BUSY]), "a hundred have begun a task")
        until(lambda: list(states(client).values()).count(JobState.RUNNING) == BUSY, "they run")
        before, held = states(client), {m.name: m.task for m in members}
        assert sorted(before) == sorted(acked)
        welcomes = [m.welcomes for m in members]
        cluster.coordinator.kill()
        cluster.coordinator.start()
        began = time.monotonic()
        until(lambda: all(m.welcomes > n for m, n in zip(members, welcomes, strict=True)), "back")
        measured(55, time.monotonic() - began)
        until(lambda: connected(client) == AGENTS, "all are connected")
        assert [m.welcomes for m in members] == [n + 1 for n in welcomes], "each once"
        assert {m.name: m.task for m in members} == held
        assert states(client) == before
        assert all(len(client.job(n).attempts) <= 1 for n in acked[:20])
        for number in acked:
            client.cancel(number)
        until(lambda: all(m.task is None for m in members), "all are ended and forgotten")
        assert set(states(client).values()) == {JobState.CANCELLED}
