"""The names of a gang on machines of their own: there while the job runs, and nowhere after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.protocol.http import JobView
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, submit, until, wait

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    if why := missing():
        pytest.skip(why)
    with NamespaceCluster(tmp_path_factory.mktemp("names"), agents=2) as made:
        yield made


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    """Each job has a hosts file of its own."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("own")
    made = NamespaceCluster(folder, agents=2, env={"MUSTER_AGENT_HOSTS_MODE": "private"})
    with made:
        yield made


@pytest.fixture
def two(cluster: NamespaceCluster) -> Iterator[tuple[Machine, Machine]]:
    """Both machines, whose hosts files are again what they were before."""
    first, second = cluster.machines.values()
    before = [machine.hosts() for machine in (first, second)]
    yield first, second
    for job in cluster.client().jobs().jobs:
        cluster.muster("cancel", "--force", str(job.id), check=False)
    until(lambda: not any(blocks(m) for m in (first, second)), "no block is left")
    for machine, text in zip((first, second), before, strict=True):
        machine.write("/etc/hosts", text)


def blocks(machine: Machine) -> list[str]:
    """The attempts that have a block there."""
    return re.findall(r"(?m)^# BEGIN muster (\S+) ", machine.hosts())


def view(cluster: NamespaceCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


WAITS = "touch up.$MUSTER_NODE_RANK; until [ -e go ]; do sleep 0.02; done"


def running(cluster: NamespaceCluster, folder: Path, run: str = WAITS) -> str:
    job = submit(cluster, folder, nodes=2, run=run)
    until(lambda: all((folder / f"up.{rank}").exists() for rank in (0, 1)), "both run")
    return job


def test_a_gang_knows_its_peers_while_it_runs_and_no_longer(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    before = [machine.hosts() for machine in two]
    inodes = [machine.disk("/etc/hosts").stat().st_mode for machine in two]
    script = f"{{ getent hosts node-1 node-2; }} > seen.$MUSTER_NODE_RANK; {WAITS}"
    job = running(cluster, tmp_path, script)
    for machine in two:
        assert blocks(machine) == [f"{job}.1"]
        assert machine.hosts().startswith(before[0] if machine is two[0] else before[1])
        peer = two[1] if machine is two[0] else two[0]
        assert machine.exec("getent", "hosts", peer.address).stdout.split()[1] == peer.name
    for rank in (0, 1):
        lines = await_file(tmp_path / f"seen.{rank}").splitlines()
        # Each machine has a line for itself from the start, too.
        seen = dict.fromkeys(tuple(line.split()[:2]) for line in lines)
        assert list(seen) == [(machine.address, machine.name) for machine in two]
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    # A job has ended when its nodes are clean, so there is nothing to wait for.
    assert [machine.hosts() for machine in two] == before
    assert [machine.disk("/etc/hosts").stat().st_mode for machine in two] == inodes


def test_a_job_of_one_node_touches_nothing(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    inodes = [machine.disk("/etc/hosts").stat().st_ino for machine in two]
    assert wait(cluster, submit(cluster, tmp_path, run="true")) == 0
    assert [machine.disk("/etc/hosts").stat().st_ino for machine in two] == inodes


def test_names_outlive_a_killed_agent_with_the_job_and_go_with_it(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    job = running(cluster, tmp_path)
    agent = cluster.nodes[two[0].name]
    agent.kill()
    (tmp_path / "go").touch()
    until(lambda: not blocks(two[1]), "the other node is clean")
    assert blocks(two[0]) == [f"{job}.1"]
    agent.start()
    assert wait(cluster, job) == 0
    assert not blocks(two[0])


def test_names_go_when_a_node_boots_after_its_power_failed(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    job = running(cluster, tmp_path)
    two[0].power_off()
    assert blocks(two[0]) == [f"{job}.1"]
    cluster.muster("cancel", job)
    cluster.boot(two[0].name)
    until(lambda: not blocks(two[0]), "the block of the attempt that died is gone")
    wait(cluster, job)


def test_a_block_of_nobody_goes_when_the_agent_starts(
    cluster: NamespaceCluster, two: tuple[Machine, Machine]
) -> None:
    before = two[0].hosts()
    agent = cluster.nodes[two[0].name]
    agent.kill()
    stale = "# BEGIN muster 99.1 (by muster-agent: left)\n10.1.1.1\tx\t# muster 99.1\n"
    two[0].write("/etc/hosts", before + stale)
    agent.start()
    until(lambda: two[0].hosts() == before, "the block is gone, although it was cut short")
    until(lambda: cluster.client().nodes().nodes[0].link == "connected", "the agent is back")


def test_a_foreign_line_rolls_all_back_and_says_what_to_do(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    foreign = two[1].hosts() + "10.9.9.9 node-1 # of an admin\n"
    two[1].write("/etc/hosts", foreign)
    job = submit(cluster, tmp_path, nodes=2, run="touch ran", retry={"infra": 0})
    assert wait(cluster, job) != 0
    ended = view(cluster, job)
    assert ended.state is not JobState.SUCCEEDED
    (attempt,) = ended.attempts
    assert attempt.cause is not None
    line = foreign.count("\n")
    for word in ("node-2", f"line {line} of /etc/hosts", "node-1", "10.9.9.9", "remove or correct"):
        assert word in attempt.cause.text
    assert not (tmp_path / "ran").exists()
    assert two[1].hosts() == foreign
    assert not blocks(two[0])


def test_a_line_that_leads_to_a_peer_on_this_machine_is_refused(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    foreign = "127.0.0.1 localhost\n127.0.0.1 node-1\n"
    two[1].write("/etc/hosts", foreign)
    job = submit(cluster, tmp_path, nodes=2, run="touch ran", retry={"infra": 0})
    assert wait(cluster, job) != 0
    (attempt,) = view(cluster, job).attempts
    assert attempt.cause is not None
    for word in ("node-2 refused", "line 2 of /etc/hosts", "node-1", "127.0.0.1"):
        assert word in attempt.cause.text
    assert not (tmp_path / "ran").exists()
    assert two[1].hosts() == foreign
    assert not blocks(two[0])


def test_debians_line_is_a_warning_that_is_shown(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    two[0].write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 node-1\n")
    script = "echo $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME > names.$MUSTER_NODE_RANK"
    job = submit(cluster, tmp_path, nodes=2, run=script)
    assert wait(cluster, job) == 0
    shown = cluster.muster("show", job).stdout
    assert "warning: node-1: this node's own name node-1 leads to 127.0.1.1" in shown
    assert await_file(tmp_path / "names.0") == "=eth0 eth0\n"


def test_a_hosts_file_that_is_mounted_on_is_written_in_place(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    machine = two[0]
    machine.exec("mount", "--bind", "/etc/hosts", "/etc/hosts")
    try:
        inode = machine.disk("/etc/hosts").stat().st_ino
        job = running(cluster, tmp_path)
        assert blocks(machine) == [f"{job}.1"]
        (tmp_path / "go").touch()
        assert wait(cluster, job) == 0
        assert machine.disk("/etc/hosts").stat().st_ino == inode
    finally:
        machine.exec("umount", "/etc/hosts")


def test_a_hosts_file_of_the_jobs_own(private: NamespaceCluster, tmp_path: Path) -> None:
    machines = list(private.machines.values())
    foreign = machines[0].hosts() + "10.9.9.9 node-2 # stays as it is\n"
    machines[0].write("/etc/hosts", foreign)
    script = f"{{ cat /etc/hosts; getent hosts node-2; }} > seen.$MUSTER_NODE_RANK; {WAITS}"
    job = running(private, tmp_path, script)
    assert machines[0].hosts() == foreign
    assert not blocks(machines[1])
    seen = await_file(tmp_path / "seen.0")
    assert f"# BEGIN muster {job}.1 " in seen
    assert "10.9.9.9" not in seen
    assert seen.splitlines()[-1].split() == [machines[1].address, "node-2"]
    (tmp_path / "go").touch()
    assert wait(private, job) == 0
    assert "this job does not see that line" in private.muster("show", job).stdout
