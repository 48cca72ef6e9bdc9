"""A coordinator that is away for longer than any lease ends no job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_file, await_running, submit, until, wait

LEASE_S = 3

# Once the test says so, it counts ten seconds of its own clock: more than three leases.
OUTLIVES = """
echo $$ >> "pids.$MUSTER_NODE_RANK"
until [ -e away ]; do sleep 0.05; done
end=$((SECONDS + 10))
until [ "$SECONDS" -ge "$end" ]; do sleep 0.1; done
echo outlived > "outlived.$MUSTER_NODE_RANK"
until [ -e go ]; do sleep 0.05; done
"""


@pytest.fixture
def short(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes; the lease of gangs ends soon."""
    lease = {
        "MUSTER_COORDINATOR_HEARTBEAT_S": "1",
        "MUSTER_COORDINATOR_LEASE_S": f"{LEASE_S}",
    }
    made = LocalCluster(tmp_path / "cluster", agents=2, env={**PORTS, **lease})
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.mark.parametrize("nodes", [1])
def test_a_job_outlives_a_coordinator_that_is_away(
    short: LocalCluster, tmp_path: Path, nodes: int
) -> None:
    job = submit(short, tmp_path, nodes=nodes, run=OUTLIVES)
    for rank in range(nodes):
        await_file(tmp_path / f"pids.{rank}")
    await_running(short, job)
    short.coordinator.kill()
    (tmp_path / "away").touch()
    for rank in range(nodes):
        await_file(tmp_path / f"outlived.{rank}")
    short.coordinator.start()
    short.wait_for_nodes()
    assert short.client().job(int(job)).state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert wait(short, job) == 0
    assert len(short.client().job(int(job)).attempts) == 1
    for rank in range(nodes):
        assert len((tmp_path / f"pids.{rank}").read_text().split()) == 1
