"""Nodes that run out of room or of descriptors, with real daemons: the agent lives and says so."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_file, submit, until, wait
from tests.small_disk import fill, small_disk


@dataclass
class Small(LocalCluster):
    """The state folder of its node is on a small disk."""

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), "state_dir": str(self.disk / "state")}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    root = tmp_path / "cluster"
    root.mkdir()
    with small_disk(root / "disk", 128 << 20):
        made = Small(root, agents=1, env=PORTS)
        with made:
            yield made
        until(lambda: made.leftovers() == [], "no process of the cluster is left")


def warnings(cluster: LocalCluster) -> str:
    return " ".join(cluster.client().node("node-1").warnings)


# Writes into its scratch until there is no more room, as a program does that keeps its data there.
FILLS = """
import os
with open(os.path.join(os.environ["MUSTER_SCRATCH"], "data"), "wb", buffering=0) as out:
    while True:
        out.write(b"x" * (1 << 20))
"""


@pytest.mark.root
def test_a_job_that_fills_the_disk_ends_with_that_and_its_node_goes_on(
    small: Small, tmp_path: Path
) -> None:
    (tmp_path / "fills.py").write_text(FILLS)
    job = submit(small, tmp_path, run=["python", "fills.py"], retry={"infra": 0})
    ended = wait(small, job)
    cause = small.client().job(int(job)).attempts[0].cause
    assert cause is not None
    assert ended == 122, cause
    assert cause.text.startswith("disk full on node-1, where the folders of tasks are: rank 0")
    # Its scratch goes with it.
    until(lambda: warnings(small) == "", "there is room again")
    assert wait(small, submit(small, tmp_path, run="true")) == 0


@pytest.mark.root
def test_a_full_disk_is_a_warning_and_jobs_wait_for_room_and_running_ones_go_on(
    small: Small, tmp_path: Path
) -> None:
    running = submit(
        small,
        tmp_path,
        run="echo here > here; until [ -e go ]; do sleep 0.1; done",
        resources={"cpu": 1},
    )
    await_file(tmp_path / "here")
    filler = fill(small.disk)
    until(lambda: "is full: 0 MiB of 128 MiB free" in warnings(small), "the full disk is a warning")
    assert small.client().node("node-1").link == "connected"
    (tmp_path / "go").touch()
    assert wait(small, running) == 0
    waiting = submit(small, tmp_path, run="true", retry={"infra": 0})
    why = " ".join(small.muster("explain", waiting).stdout.split())
    assert "has no disk for a task: the disk of" in why
    filler.unlink()
    assert wait(small, waiting) == 0


@pytest.mark.root
def test_without_descriptors_a_start_is_refused_and_the_agent_lives(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    only = {"include": ["node-1"]}
    agent = own_cluster.nodes["node-1"].pid
    used = len(list(Path(f"/proc/{agent}/fd").iterdir()))
    _, most = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    before = resource.prlimit(agent, resource.RLIMIT_NOFILE, (used + 20, most))
    job = submit(own_cluster, tmp_path, run="true", placement=only, retry={"infra": 0})
    assert wait(own_cluster, job) == 122
    cause = own_cluster.client().job(int(job)).attempts[0].cause
    assert cause is not None
    assert (cause.refusal, cause.node) == ("no_descriptors", "node-1")
    resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
    assert wait(own_cluster, submit(own_cluster, tmp_path, run="true", placement=only)) == 0
    assert own_cluster.nodes["node-1"].pid == agent
