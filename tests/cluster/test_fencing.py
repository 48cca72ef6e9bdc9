"""Two of what there may be one: the second is refused with both named. Who was away is fenced."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.shim.system.syscalls import descendants
from examples.local_cluster import Daemon, LocalCluster, free_port
from muster.protocol.outcome import CauseCode
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import alive, await_file, await_running, submit, until, wait

RUN = """
echo $$ >> ran.$MUSTER_ATTEMPT
until [ -e go ]; do sleep 0.02; done
"""


def config_of(daemon: Daemon) -> Path:
    return Path(daemon.argv[daemon.argv.index("--config") + 1])


def another(cluster: LocalCluster, first: Daemon, name: str, **changed: object) -> Daemon:
    """Return a daemon with the configuration of `first`, except for `changed`."""
    settings = {**yaml.safe_load(config_of(first).read_text()), **changed}
    path = cluster.root / "config" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    argv = [*first.argv[: first.argv.index("--config")], "--config", str(path)]
    return Daemon(name, argv, first.env, cluster.root / "logs" / f"{name}.log")


@contextlib.contextmanager
def started(daemon: Daemon) -> Iterator[Daemon]:
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.kill()


def refusal(daemon: Daemon) -> str:
    """Return the last output of a daemon that cannot start."""
    assert daemon.process is not None
    assert daemon.process.wait(300) == 1
    text = daemon.log.read_text()
    assert "Traceback" not in text
    return text


def ends_well(cluster: LocalCluster, folder: Path, job: str, pid: str) -> None:
    """The job was not touched: one attempt, the same process."""
    await_running(cluster, job)
    assert alive(int(pid))
    (folder / "go").touch()
    assert wait(cluster, job) == 0
    assert len(cluster.client().job(int(job)).attempts) == 1
    assert (folder / "ran.1").read_text() == pid


@pytest.mark.fault(62)
def test_a_second_coordinator_of_a_state_folder(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=RUN)
    pid = await_file(tmp_path / "ran.1")
    listen = {"host": "127.0.0.1", "port": free_port()}
    with started(another(cluster, cluster.coordinator, "second", listen=listen)) as second:
        said = refusal(second)
    assert f"in use by process {cluster.coordinator.pid}" in said
    ends_well(cluster, tmp_path, job, pid)


@pytest.mark.fault(39)
def test_a_second_agent_of_a_name(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=RUN, placement={"include": ["node-1"]})
    pid = await_file(tmp_path / "ran.1")
    first = cluster.nodes["node-1"]
    state = str(cluster.root / "state" / "second")
    changed = {"state_dir": state, "address": "127.0.0.99"}
    with started(another(cluster, first, "same-name", **changed)) as second:
        until(lambda: "duplicate_name" in second.log.read_text(), "it is refused")
        why = json.loads(
            next(line for line in second.log.read_text().splitlines() if "duplicate_name" in line)
        )["why"]
        assert "in use by an agent at 127.0.0.1; this one is at 127.0.0.1" in why
        assert "welcomed" not in second.log.read_text()
        assert "node-1" in cluster.muster("nodes").stdout
    ends_well(cluster, tmp_path, job, pid)


@pytest.mark.fault(42)
def test_a_copy_of_a_node(cluster: LocalCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, run=RUN, placement={"include": ["node-1"]})
    pid = await_file(tmp_path / "ran.1")
    copied = cluster.root / "state" / "copy"
    copied.mkdir(mode=0o700)
    for name in ("agent_id", "cluster"):
        shutil.copy(cluster.root / "state" / "node-1" / name, copied)
    changed = {"state_dir": str(copied), "address": "127.0.0.98"}
    with started(another(cluster, cluster.nodes["node-1"], "copy", **changed)) as copy:
        until(lambda: '"refused"' in copy.log.read_text(), "it is refused")
        why = copy.log.read_text()
        # Both are on one machine of one boot, as after a restart: who is there stays.
        assert "is still held by an agent at 127.0.0.1; this one is at 127.0.0.1" in why
        assert "welcomed" not in why
    ends_well(cluster, tmp_path, job, pid)


@pytest.mark.fault(40)
def test_a_second_agent_of_a_state_folder(cluster: LocalCluster, tmp_path: Path) -> None:
    first = cluster.nodes["node-1"]
    with started(another(cluster, first, "same-folder", node="other")) as second:
        assert f"in use by process {first.pid}" in refusal(second)
    assert cluster.client().node("node-1").link == "connected"


@pytest.mark.fault(23)
def test_a_coordinator_that_is_stopped_changes_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, run=RUN)
    pid = await_file(tmp_path / "ran.1")
    logs = [agent.log for agent in cluster.nodes.values()]
    before = [log.read_text().count("silent for") for log in logs]
    os.kill(cluster.coordinator.pid, signal.SIGSTOP)
    try:
        until(
            lambda: all(
                log.read_text().count("silent for") > known
                for log, known in zip(logs, before, strict=True)
            ),
            "every agent has noticed",
        )
    finally:
        os.kill(cluster.coordinator.pid, signal.SIGCONT)
    cluster.wait_for_nodes()
    ends_well(cluster, tmp_path, job, pid)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes that are found silent soon."""
    beats = {"MUSTER_COORDINATOR_HEARTBEAT_S": "1"}
    made = LocalCluster(tmp_path / "cluster", agents=2, env={**PORTS, **beats})
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.mark.long
@pytest.mark.fault(22, 41)
def test_a_node_that_slept_beyond_its_lease_is_fenced_first(
    short: LocalCluster, tmp_path: Path
) -> None:
    """The whole node stops, as a machine that is suspended does: agent, shim and ranks."""
    job = submit(short, tmp_path, run=RUN, lease="15s")
    pid = int(await_file(tmp_path / "ran.1"))
    node = short.client().job(int(job)).attempts[0].tasks[0].node
    agent = short.nodes[node]
    asleep = [agent.pid, *descendants(agent.pid)]
    for one in asleep:
        os.kill(one, signal.SIGSTOP)
    # The ranks' own end is the shim's work, which sleeps: none of them may run when it wakes.
    await_file(tmp_path / "ran.2")
    assert alive(pid)
    for one in asleep:
        if one != pid:
            os.kill(one, signal.SIGCONT)
    until(lambda: not alive(pid), "the first attempt's rank is ended before it could go on")
    short.wait_for_nodes()
    (tmp_path / "go").touch()
    assert wait(short, job) == 0
    first, second = short.client().job(int(job)).attempts
    assert first.cause is not None
    assert first.cause.code is CauseCode.NODE_LOST
    assert second.tasks[0].node != node
    assert (tmp_path / "ran.1").read_text() == f"{pid}\n"
    tasks = short.root / "state" / node / "tasks"
    until(lambda: list(tasks.iterdir()) == [], "its folder is gone")
