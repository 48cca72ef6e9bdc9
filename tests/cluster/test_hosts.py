"""The names of a gang on machines of their own: there while the job runs, and nowhere after it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.http.views import JobView
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
    foreign = machines[0].hosts() + "127.0.1.1 node-1 nas01 # stays as it is\n"
    machines[0].write("/etc/hosts", foreign)
    script = f"{{ cat /etc/hosts; getent hosts node-2; }} > seen.$MUSTER_NODE_RANK; {WAITS}"
    job = running(private, tmp_path, script)
    assert machines[0].hosts() == foreign
    assert not blocks(machines[1])
    seen = await_file(tmp_path / "seen.0")
    assert f"# BEGIN muster {job}.1 " in seen
    assert "127.0.1.1\tnas01\n" in seen
    assert seen.splitlines()[-1].split() == [machines[1].address, "node-2"]
    (tmp_path / "go").touch()
    assert wait(private, job) == 0


def test_a_hosts_file_of_the_jobs_own_takes_no_name_from_another_machine(
    private: NamespaceCluster, tmp_path: Path
) -> None:
    machine = private.machines["node-1"]
    before = machine.hosts()
    machine.write("/etc/hosts", before + "10.9.9.9 node-2\n")
    try:
        text = refused(private, tmp_path)
    finally:
        machine.write("/etc/hosts", before)
    for word in ("node-1", "of /etc/hosts gives the name node-2 to 10.9.9.9", "remove or correct"):
        assert word in text


# Answers for the name of its first argument with the address of its second.
NAME_SERVER = """
import socket, struct, sys
name, address = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.bind(("127.0.0.1", 53))
    print("ready", flush=True)
    while True:
        data, peer = sock.recvfrom(512)
        end = data.index(0, 12) + 5
        asked = data[13:end - 5] == name.encode()
        found = asked and data[end - 4:end - 2] == b"\\0\\1"
        flags = 0x8580 if asked else 0x8583
        answer = data[:2] + struct.pack(">5H", flags, 1, found, 0, 0) + data[12:end]
        if found:
            record = struct.pack(">3HIH", 0xC00C, 1, 1, 0, 4)
            answer += record + socket.inet_aton(address)
        sock.sendto(answer, peer)
"""


@contextmanager
def name_server(machine: Machine, name: str, address: str) -> Iterator[None]:
    """Run the name server that the machine's resolver asks."""
    # nsenter, which is what can be killed from here, is its parent.
    dies = ("setpriv", "--pdeathsig", "KILL")
    argv = machine.enter(*dies, sys.executable, "-c", NAME_SERVER, name, address)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def refused(cluster: NamespaceCluster, folder: Path) -> str:
    """Return why a gang of two was rolled back before it ran."""
    job = submit(cluster, folder, nodes=2, run="touch ran", retry={"infra": 0})
    assert wait(cluster, job) != 0
    (attempt,) = view(cluster, job).attempts
    assert attempt.cause is not None
    assert not (folder / "ran").exists()
    return attempt.cause.text


@pytest.mark.parametrize("mode", ["cluster", "private"])
def test_a_name_that_the_resolver_gives_to_another_machine_is_refused(
    mode: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cluster: NamespaceCluster = request.getfixturevalue(mode)
    machines = list(cluster.machines.values())
    before = [machine.hosts() for machine in machines]
    with name_server(machines[1], "node-1", "10.9.9.9"):
        text = refused(cluster, tmp_path)
    for word in ("node-2", "the name node-1 leads to 10.9.9.9", machines[0].address, "agent.yaml"):
        assert word in text
    until(lambda: [machine.hosts() for machine in machines] == before, "no block is left")
    client = cluster.client()
    until(lambda: {it.state.code for it in client.nodes().nodes} == {"free"}, "all are free")


def test_a_name_that_the_resolver_leads_to_another_address_of_its_node_is_the_nodes(
    cluster: NamespaceCluster, two: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """A management network, which is not the gang's."""
    managed = "10.88.0.1"
    two[0].exec("ip", "address", "add", f"{managed}/24", "dev", "eth0")
    try:
        until(lambda: managed in cluster.muster("node", "show", "node-1").stdout, "it is reported")
        with name_server(two[1], "node-1", managed):
            job = submit(cluster, tmp_path, nodes=2, run="getent hosts node-1 > $MUSTER_NODE_RANK")
            assert wait(cluster, job) == 0
        assert (tmp_path / "1").read_text().split()[0] == two[0].address
    finally:
        two[0].exec("ip", "address", "delete", f"{managed}/24", "dev", "eth0")


def test_no_other_machine_joins_under_the_name_of_the_coordinators(
    cluster: NamespaceCluster, two: tuple[Machine, Machine]
) -> None:
    name = two[1].name
    config = cluster.root / "config" / f"{name}.yaml"
    before = config.read_text()
    agent = cluster.nodes[name]
    agent.stop()
    config.write_text(before.replace(f"node: {name}", f"node: {cluster.head.name}"))
    try:
        agent.start()
        until(lambda: "bad_name" in agent.tail(), "it is refused")
        assert cluster.head.name not in {node.name for node in cluster.client().nodes().nodes}
    finally:
        agent.stop()
        config.write_text(before)
        agent.start()
        cluster.wait_for_nodes()
