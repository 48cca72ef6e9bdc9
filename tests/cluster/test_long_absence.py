"""A coordinator that is away for longer than any lease ends no job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_file, await_running, log_of, submit, until, wait

LEASE_S = 6

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
    lease = {
        "MUSTER_COORDINATOR_HEARTBEAT_S": "1",
        "MUSTER_COORDINATOR_LEASE_S": f"{LEASE_S}",
    }
    made = LocalCluster(tmp_path / "cluster", agents=2, env={**PORTS, **lease})
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_outlives_a_coordinator_that_is_away(
    short: LocalCluster, tmp_path: Path, nodes: int
) -> None:
    (tmp_path / "outlives.py").write_text(OUTLIVES)
    job = submit(short, tmp_path, nodes=nodes, launcher="torchrun", run=["outlives.py"])
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
        assert f"rank {rank} is done" in log_of(short, job, "--rank", str(rank))
        assert len((tmp_path / f"pids.{rank}").read_text().split()) == 1
