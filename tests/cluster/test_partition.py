"""Cuts between machines: each side doubts the other, nobody's job pays, and none runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.namespace_cluster import NamespaceCluster
from examples.rig.rig import missing
from muster.protocol.outcome import CauseCode
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, await_running, log_of, submit, until, wait
from tests.cluster.proxied import COUNT, whole

pytestmark = pytest.mark.root

HEARTBEAT_S = 1.0
NODES = ("node-1", "node-2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    if why := missing():
        pytest.skip(why)
    env = {"MUSTER_COORDINATOR_HEARTBEAT_S": f"{HEARTBEAT_S:g}"}
    made = NamespaceCluster(tmp_path_factory.mktemp("cluster"), agents=2, env=env)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def links(cluster: NamespaceCluster) -> list[str]:
    return [cluster.client().node(name).link for name in NODES]


def start(cluster: NamespaceCluster, folder: Path) -> str:
    job = submit(cluster, folder, nodes=2, run=COUNT)
    for rank in (0, 1):
        await_file(folder / f"pids.{rank}")
    await_running(cluster, job)
    return job


def end(cluster: NamespaceCluster, folder: Path, job: str) -> None:
    assert cluster.client().job(int(job)).state is JobState.RUNNING
    (folder / "go").touch()
    assert wait(cluster, job) == 0
    for rank in (0, 1):
        assert len((folder / f"pids.{rank}").read_text().split()) == 1
        assert whole(log_of(cluster, job, "--rank", str(rank)), folder, rank)
    assert len(cluster.client().job(int(job)).attempts) == 1


@pytest.mark.parametrize(
    ("fault", "inbound", "outbound"),
    [
        pytest.param(13, True, True, marks=pytest.mark.fault(13), id="both ways"),
        pytest.param(15, True, False, marks=pytest.mark.fault(15), id="to the agent"),
        pytest.param(16, False, True, marks=pytest.mark.fault(16), id="from the agent"),
    ],
)
def test_a_job_runs_on_while_its_node_is_cut_off(
    cluster: NamespaceCluster,
    tmp_path: Path,
    measured: Callable[[int, float], None],
    fault: int,
    inbound: bool,
    outbound: bool,
) -> None:
    job = start(cluster, tmp_path)
    said = cluster.nodes["node-1"].log
    before = said.read_text().count("disconnected")
    cluster.machines["node-1"].cut(inbound=inbound, outbound=outbound)
    try:
        began = time.monotonic()
        until(lambda: links(cluster) == ["suspect", "connected"], "the coordinator has noticed")
        until(lambda: said.read_text().count("disconnected") > before, "the agent has noticed")
        measured(fault, time.monotonic() - began)
        assert cluster.client().job(int(job)).state is JobState.RUNNING
    finally:
        cluster.machines["node-1"].mend()
    until(lambda: links(cluster) == ["connected", "connected"], "it is back")
    end(cluster, tmp_path, job)


@pytest.mark.fault(17)
def test_a_coordinator_that_is_cut_off_ends_nothing(
    cluster: NamespaceCluster, tmp_path: Path
) -> None:
    job = start(cluster, tmp_path)
    cluster.head.cut()
    try:
        said = [cluster.nodes[name].log for name in NODES]
        until(lambda: all("silent for" in log.read_text() for log in said), "both have noticed")
    finally:
        cluster.head.mend()
    until(lambda: links(cluster) == ["connected", "connected"], "both are back")
    end(cluster, tmp_path, job)


RUNS = """
trap 'echo "end $MUSTER_ATTEMPT" >> runs; exit 1' TERM
echo "begin $MUSTER_ATTEMPT" >> runs
until [ -e go ]; do sleep 0.05; done
"""


@pytest.mark.long
@pytest.mark.fault(11, 14, 41)
def test_no_second_attempt_begins_before_the_first_has_ended(
    tmp_path: Path, measured: Callable[[int, float], None]
) -> None:
    if why := missing():
        pytest.skip(why)
    env = {"MUSTER_COORDINATOR_HEARTBEAT_S": "1"}
    cluster = NamespaceCluster(tmp_path / "cluster", agents=2, env=env)
    with cluster:
        job = submit(cluster, tmp_path, nodes=1, run=RUNS, lease="15s")
        await_file(tmp_path / "runs")
        ((task,),) = [a.tasks for a in cluster.client().job(int(job)).attempts]
        began = time.monotonic()
        cluster.machines[task.node].cut()
        until(lambda: "begin 2" in (tmp_path / "runs").read_text(), "the second attempt runs")
        measured(14, time.monotonic() - began)
        assert (tmp_path / "runs").read_text() == "begin 1\nend 1\nbegin 2\n"
        cluster.machines[task.node].mend()
        until(lambda: links(cluster) == ["connected", "connected"], "it is back")
        (tmp_path / "go").touch()
        assert wait(cluster, job) == 0
        first, second = cluster.client().job(int(job)).attempts
        assert first.cause is not None
        assert first.cause.code is CauseCode.NODE_LOST
        assert second.tasks[0].node != task.node
        assert (tmp_path / "runs").read_text() == "begin 1\nend 1\nbegin 2\n"
    until(lambda: cluster.leftovers() == [], "no process of the cluster is left")
