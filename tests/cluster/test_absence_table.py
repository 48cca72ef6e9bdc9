"""The rows of the table in docs/how-to/operate.md on machines of their own, with a short lease L.

Two rows are elsewhere: a member without power in test_silent_nodes.py, and a single node with
`lease` in test_partition.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.http.views import JobView
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_running, submit, until, wait

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(300)]

LEASE_S = 8
# Notes its begin and its end. Once the test says so, it counts more than three leases by itself.
RUNS = f"""
name=$MUSTER_ATTEMPT.$MUSTER_NODE_RANK
trap 'echo "end $name" >> runs; exit 1' TERM
echo "begin $name" >> runs
count=0
until [ -e go ]; do
    sleep 0.1
    if [ -e away ]; then
        count=$((count + 1))
        if [ $count = {30 * LEASE_S + 20} ]; then echo "outlived $name" >> runs; fi
    fi
    if [ -e "fail.$MUSTER_ATTEMPT.$MUSTER_NODE_RANK" ]; then exit 1; fi
done
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    if why := missing():
        pytest.skip(why)
    env = {
        **PORTS,
        "MUSTER_COORDINATOR_HEARTBEAT_S": "1",
        "MUSTER_COORDINATOR_LEASE_S": f"{LEASE_S}",
    }
    made = NamespaceCluster(tmp_path_factory.mktemp("cluster"), agents=3, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


class Scene:
    """A job on the cluster, and the machines of its nodes in node-rank order."""

    def __init__(self, cluster: NamespaceCluster, folder: Path, nodes: int, **more: Any) -> None:
        self.cluster, self.folder = cluster, folder
        self.job = submit(cluster, folder, nodes=nodes, run=RUNS, stop={"grace": "1s"}, **more)
        self.await_words(*(f"begin 1.{rank}" for rank in range(nodes)))
        await_running(cluster, self.job)
        self.names = [task.node for task in self.view().attempts[0].tasks]
        self.machines = [cluster.machines[name] for name in self.names]

    def view(self) -> JobView:
        return self.cluster.client().job(int(self.job))

    def words(self) -> list[str]:
        file = self.folder / "runs"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def await_words(self, *wanted: str) -> None:
        until(lambda: set(wanted) <= set(self.words()), f"{wanted} in {self.folder}")

    def is_away(self) -> None:
        """Let the ranks count the time that they run for from now on."""
        (self.folder / "away").touch()

    def outlives(self, *ranks: int) -> None:
        """Wait until these have run for more than three leases, as nothing ended."""
        self.await_words(*(f"outlived 1.{rank}" for rank in ranks))
        assert not [word for word in self.words() if word.startswith("end")]

    def is_back(self) -> None:
        """End all cuts."""
        for machine in (self.cluster.head, *self.cluster.machines.values()):
            machine.mend()
        names = self.cluster.nodes
        client = self.cluster.client()
        until(lambda: {client.node(it).link for it in names} == {"connected"}, "all are back")

    def succeeds(self, attempts: int = 1) -> None:
        (self.folder / "go").touch()
        assert wait(self.cluster, self.job) == 0
        assert len(self.view().attempts) == attempts

    def never_ran_twice(self, nodes: int) -> None:
        """All of the first attempt had ended before the second began."""
        words = self.words()
        ends = [words.index(f"end 1.{rank}") for rank in range(nodes)]
        begins = [words.index(f"begin 2.{rank}") for rank in range(nodes)]
        assert max(ends) < min(begins), words


def part(some: list[Machine], others: list[Machine]) -> None:
    """Cut every link between the two groups, in both directions."""
    for one, other in product(some, others):
        one.cut_from(other)
        other.cut_from(one)


@pytest.fixture
def mended(cluster: NamespaceCluster) -> Iterator[NamespaceCluster]:
    """The cluster, whose cuts end with the test."""
    yield cluster
    for machine in (cluster.head, *cluster.machines.values()):
        machine.mend()


def test_a_gang_cut_off_from_the_coordinator_and_a_single_node_without_lease_run_on(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    for name in ("gang", "single"):
        (tmp_path / name).mkdir()
    gang = Scene(mended, tmp_path / "gang", 2)
    single = Scene(mended, tmp_path / "single", 1)
    part([mended.head], gang.machines)
    single.machines[0].cut()
    for scene in (gang, single):
        scene.is_away()
    gang.outlives(0, 1)
    single.outlives(0)
    assert single.view().state is JobState.RUNNING
    gang.is_back()
    gang.succeeds()
    single.succeeds()


def test_a_member_cut_off_from_the_coordinator_runs_on_and_is_shown(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    scene = Scene(mended, tmp_path, 2)
    part([mended.head], scene.machines[1:])
    scene.is_away()
    scene.outlives(0, 1)
    view = scene.view()
    assert view.state is JobState.RUNNING
    assert view.reason.code == "unreachable"
    assert f"{scene.names[1]} unreachable" in view.reason.text
    scene.is_back()
    scene.succeeds()


def test_a_member_cut_off_from_all_ends_before_the_next_attempt(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    scene = Scene(mended, tmp_path, 2)
    scene.machines[1].cut()
    scene.await_words("end 1.0", "end 1.1", "begin 2.0", "begin 2.1")
    scene.never_ran_twice(2)
    scene.is_back()
    scene.succeeds(2)


def test_of_a_split_gang_the_half_that_nobody_sees_ends(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    scene = Scene(mended, tmp_path, 3)
    part(scene.machines[1:], [mended.head, scene.machines[0]])
    scene.await_words("end 1.0", "end 1.1", "end 1.2")
    # The half knows no other member, so three nodes are not there for another attempt.
    assert "begin 2.0" not in scene.words()
    scene.is_back()
    scene.await_words("begin 2.0", "begin 2.1", "begin 2.2")
    scene.never_ran_twice(3)
    scene.succeeds(2)


def test_of_a_split_gang_that_nobody_sees_both_halves_end(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    scene = Scene(mended, tmp_path, 2)
    part([mended.head], scene.machines)
    part(scene.machines[:1], scene.machines[1:])
    scene.await_words("end 1.0", "end 1.1")
    assert scene.view().state is JobState.RUNNING
    scene.is_back()
    scene.await_words("begin 2.0", "begin 2.1")
    scene.never_ran_twice(2)
    scene.succeeds(2)


def test_a_member_whose_agent_is_away_for_longer_than_the_lease_ends(
    mended: NamespaceCluster, tmp_path: Path
) -> None:
    scene = Scene(mended, tmp_path, 2, retry={"user": 1})
    agent = mended.nodes[scene.names[1]]
    agent.kill()
    try:
        scene.await_words("end 1.1")
        # A program that trains fails now. The next attempt begins when the lease is over.
        (tmp_path / "fail.1.0").touch()
        scene.await_words("begin 2.0", "begin 2.1")
        words = scene.words()
        assert words.index("end 1.1") < words.index("begin 2.0")
    finally:
        agent.start()
    scene.is_back()
    scene.succeeds(2)
