"""Releases side by side: each daemon may be one older or newer, and a job notices none of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import Daemon, LocalCluster
from muster.protocol.states import JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, await_running, logs, submit, until, wait

TREE = Path(__file__).resolve().parents[2]
# The first rank that fails stops the others: it fails when they have ended.
WAITS = """
echo $$ >> "pids.$MUSTER_NODE_RANK"
echo before
until [ -e go ]; do sleep 0.05; done
echo after
if [ "$MUSTER_NODE_RANK" = 1 ]; then touch done; exit 0; fi
until [ -e done ]; do sleep 0.05; done
exit 7
"""


def become(daemon: Daemon, version: str | None) -> None:
    """The release that it is from its next start on; None: this one."""
    argv: list[str] = getattr(daemon, "own_argv", daemon.argv)
    daemon.own_argv = argv  # type: ignore[attr-defined]
    verb = argv[1]
    assert verb in ("coordinator", "agent")
    other = [sys.executable, "-m", "tests.cluster.other_version", version or "", verb, *argv[2:]]
    daemon.argv = argv if version is None else other
    path = os.pathsep.join([str(TREE), daemon.env.get("PYTHONPATH", "")])
    daemon.env = {**daemon.env, "PYTHONPATH": path}


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes, not started yet."""
    made = LocalCluster(tmp_path / "cluster", agents=2, env=PORTS)
    yield made
    made.stop()
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def agents(cluster: LocalCluster) -> list[Daemon]:
    return list(cluster.nodes.values())


def tasks_of(cluster: LocalCluster) -> list[Path]:
    return list(cluster.root.glob("state/*/tasks/*"))


def pids(folder: Path) -> list[int]:
    return [int(await_file(folder / f"pids.{rank}")) for rank in (0, 1)]


def finish(cluster: LocalCluster, job: str, folder: Path) -> None:
    """It is one run from first to last, whose end and output are whole."""
    began = pids(folder)
    assert all(map(alive, began))
    (folder / "go").touch()
    assert wait(cluster, job) == 7
    assert pids(folder) == began
    for rank in (0, 1):
        assert (folder / f"pids.{rank}").read_text().count("\n") == 1
        printed = logs(cluster, "--rank", str(rank), "--no-prefix", job).stdout
        assert printed == "before\nafter\n"
    assert len(cluster.client().job(int(job)).attempts) == 1


@pytest.mark.parametrize(
    ("coordinator", "first", "second"),
    [
        (None, None, "next"),
        ("next", None, "next"),
    ],
)
def test_releases_that_differ_by_one_run_jobs_together(
    mixed: LocalCluster,
    tmp_path: Path,
    coordinator: str | None,
    first: str | None,
    second: str | None,
) -> None:
    become(mixed.coordinator, coordinator)
    for agent, version in zip(agents(mixed), (first, second), strict=True):
        become(agent, version)
    mixed.start()
    one = [submit(mixed, tmp_path, run="true", nodes=1) for _ in range(2)]
    assert [wait(mixed, job) for job in one] == [0, 0]
    # Each pair knows that their logs are without a byte, and not that they are still to come.
    said = [logs(mixed, job).stderr for job in one]
    assert all("has no output" in text and "delivered" not in text for text in said), said
    until(lambda: tasks_of(mixed) == [], "no task is on a node")
    job = submit(mixed, tmp_path, nodes=2, run=WAITS)
    pids(tmp_path)
    finish(mixed, job, tmp_path)
    stopped = submit(mixed, tmp_path, nodes=2, run="sleep 600")
    until(
        lambda: mixed.client().job(int(stopped)).state is JobState.RUNNING, "the job to stop runs"
    )
    mixed.muster("cancel", stopped)
    assert wait(mixed, stopped) == 121


def test_an_upgrade_under_a_running_job_is_not_noticed(mixed: LocalCluster, tmp_path: Path) -> None:
    """Both daemons, one after the other; the shims stay those of the old release."""
    daemons = [mixed.coordinator, *agents(mixed)]
    mixed.start()
    job = submit(mixed, tmp_path, nodes=2, run=WAITS)
    pids(tmp_path)
    for daemon in daemons:
        daemon.stop()
        become(daemon, "next")
        daemon.start()
    mixed.wait_for_nodes()
    await_running(mixed, job)
    finish(mixed, job, tmp_path)


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        ("ancient", "upgrade the agent of node-1 to the coordinator's release"),
        ("distant", "upgrade the coordinator first, then the agents"),
    ],
)
def test_a_release_that_is_too_far_is_refused_on_both_sides_and_its_job_goes_on(
    mixed: LocalCluster, tmp_path: Path, version: str, advice: str
) -> None:
    mixed.start()
    job = submit(mixed, tmp_path, nodes=2, run=WAITS)
    began = pids(tmp_path)
    agent = agents(mixed)[0]
    agent.stop()
    become(agent, version)
    agent.start()
    logs = [mixed.coordinator.log, agent.log]
    until(lambda: all(advice in log.read_text() for log in logs), "both say so")
    assert all(map(alive, began))
    agent.stop()
    become(agent, None)
    agent.start()
    mixed.wait_for_nodes()
    finish(mixed, job, tmp_path)
