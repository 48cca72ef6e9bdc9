"""A cluster of real daemons for the tests of a file; a fresh one where a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from examples.local_cluster import ClusterError, LocalCluster
from examples.namespace_cluster import NamespaceCluster
from examples.rig.rig import missing
from muster.client import ClientError
from tests.cluster.jobs import until
from tests.cluster.planted_gpu import OneGpu

# Processes may run tests side by side (pytest-xdist calls them gw0, gw1): each has ports of its
# own, as agents of two clusters could offer one at the same instant.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
PORTS = {
    "MUSTER_AGENT_PORTS_FIRST": f"2{WORKER}000",
    "MUSTER_AGENT_PORTS_LAST": f"2{WORKER}999",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside what failed stands what its clusters say: of what happens once in a hundred runs
    nobody can ask them later."""
    report = yield
    if call.when == "call" and report.failed:
        made = getattr(item, "funcargs", {}).items()
        report.sections += [
            (name, said_by(one)) for name, one in made if isinstance(one, LocalCluster)
        ]
    return report


def said_by(cluster: LocalCluster, jobs: int = 3, lines: int = 40) -> str:
    """The newest `jobs`, each with the end of its log, and the end of each daemon's own log."""
    said = []
    try:
        for job in cluster.client().jobs(limit=jobs).jobs:
            said += [cluster.muster("show", str(job.id), check=False).stdout]
            log = ("logs", "--rank", "all", "--tail", str(lines), str(job.id))
            done = cluster.muster(*log, check=False)
            said += [done.stdout, done.stderr]
    except (ClusterError, ClientError) as error:
        said += [str(error)]
    for daemon in (cluster.coordinator, *cluster.nodes.values()):
        said += [f"-- {daemon.name}", daemon.tail(lines)]
    return "\n".join(said)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes. Whatever a test did to it, no process of a job is left at its end."""
    made = LocalCluster(tmp_path_factory.mktemp("cluster"), agents=3, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    """Two nodes on machines of their own, for tests marked `root`."""
    if why := missing():
        pytest.skip(why)
    made = NamespaceCluster(tmp_path_factory.mktemp("machines"), agents=2)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes for a test that kills daemons."""
    made = LocalCluster(tmp_path / "cluster", agents=2, env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[OneGpu]:
    """Start a node with a GPU whose use the test sets."""
    made = OneGpu(tmp_path / "cluster", env=PORTS)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")
