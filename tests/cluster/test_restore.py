"""A restore of an older backup: a job that has started since never runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, await_running, submit, until

RUN = """
if [ -e pid ] && kill -0 "$(cat pid)"; then touch twice; fi
echo $$ > "pid.$MUSTER_ATTEMPT"
cp "pid.$MUSTER_ATTEMPT" pid
exec sleep 600
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "cluster", agents=2, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_a_job_that_has_started_since_the_backup_never_runs_twice(
    two: LocalCluster, tmp_path: Path
) -> None:
    config = str(two.root / "config" / "coordinator.yaml")
    backup = str(tmp_path / "backup.sqlite")
    client = two.client()
    two.muster("node", "drain", "node-1", "node-2", "--reason", "the job waits")
    job = submit(two, tmp_path, run=RUN)
    two.muster("backup", "--config", config, backup)
    two.muster("node", "resume", "node-1", "node-2")
    pid = int(await_file(tmp_path / "pid"))
    await_running(two, job)
    busy = client.job(int(job)).attempts[0].tasks[0].node
    (free,) = set(two.nodes) - {busy}

    # The agent is away, and the job runs on.
    two.nodes[busy].stop()
    two.coordinator.stop()
    said = two.muster("restore", "--config", config, backup).stdout
    assert f"Job {job} has run since the backup" in " ".join(said.split())
    two.coordinator.start()
    until(lambda: client.node(free).link == "connected", "the other node is back")
    two.muster("node", "resume", "--no-check", "node-1", "node-2")
    view = client.job(int(job))
    assert view.state is JobState.QUEUED
    assert f"hello: {busy}" in view.reason.text
    assert busy in two.muster("nodes").stderr
    assert alive(pid)

    two.nodes[busy].start()
    second = int(await_file(tmp_path / "pid.1001"))
    await_running(two, job)
    assert not alive(pid)
    assert second != pid
    assert not (tmp_path / "twice").exists()
    assert [attempt.number for attempt in client.job(int(job)).attempts] == [1001]
    two.muster("cancel", "--force", job)
    two.muster("wait", job, check=False)
