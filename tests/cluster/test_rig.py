"""The rig is what it says: machines that share nothing they should not, and that can be broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import examples
from agent.shim.system.cgroup import own_cgroup
from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import Machine
from examples.rig.rig import Rig, cgroup_name, missing
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, submit, until, wait

pytestmark = pytest.mark.root

PI = Path(next(iter(examples.__path__))) / "pi"


def needs_a_rig() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two machines and nothing on them."""
    needs_a_rig()
    with Rig(tmp_path_factory.mktemp("rig")) as made:
        for name in ("node-1", "node-2"):
            made.add(name)
        yield made


@pytest.fixture
def two(rig: Rig) -> Iterator[tuple[Machine, Machine]]:
    first, second = rig.machines.values()
    yield first, second
    for machine in (first, second):
        machine.mend()
        machine.slow(None)


def test_each_machine_has_its_own_names_ids_and_network(two: tuple[Machine, Machine]) -> None:
    seen = [
        [m.exec(*argv).stdout.strip() for m in two]
        for argv in (
            ("hostname",),
            ("cat", "/etc/machine-id"),
            ("cat", "/proc/sys/kernel/random/boot_id"),
            ("ip", "-4", "-o", "address", "show", "eth0"),
        )
    ]
    assert seen[0] == ["node-1", "node-2"]
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for first, second in seen:
        assert first != second
        assert here not in {first, second}
    for machine in two:
        assert machine.address in machine.exec("ip", "-4", "-o", "address").stdout
        assert machine.exec("ls", "/sys/class/net").stdout.split() == ["eth0", "lo"]
        assert machine.exec("cat", "/proc/1/comm").stdout != Path("/proc/1/comm").read_text()


def test_the_hosts_file_of_a_machine_is_a_plain_file_of_its_own(
    two: tuple[Machine, Machine],
) -> None:
    here = Path("/etc/hosts").read_bytes()
    first, second = two
    before = second.hosts()
    script = (
        "cp -p /etc/hosts /etc/new && echo 10.1.2.3 friend >> /etc/new && mv /etc/new /etc/hosts"
    )
    first.exec("sh", "-c", script)
    assert first.exec("getent", "hosts", "friend").stdout.split() == ["10.1.2.3", "friend"]
    assert "10.1.2.3 friend" in first.hosts()
    assert second.hosts() == before
    assert Path("/etc/hosts").read_bytes() == here
    assert second.exec("getent", "hosts", "friend", check=False).returncode == 2


def test_a_port_range_of_its_own(rig: Rig) -> None:
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    here = Path(path).read_text().split()
    machine = rig.add("narrow", port_range="40000 40100")
    assert machine.exec("cat", path).stdout.split() == ["40000", "40100"]
    assert Path(path).read_text().split() == here
    machine.power_off()
    del rig.machines["narrow"]


LISTEN = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.bind(("", 9))
    sock.settimeout(float(sys.argv[1]))
    print("ready", flush=True)
    try:
        print(sock.recv(10).decode())
    except TimeoutError:
        print("nothing")
"""
SPEAK = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for _ in range(3):
        sock.sendto(b"word", (sys.argv[1], 9))
"""


def hears(listener: Machine, speaker: Machine, *, patience_s: float = 0.3) -> bool:
    argv = listener.enter(sys.executable, "-c", LISTEN, str(patience_s))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        speaker.exec(sys.executable, "-c", SPEAK, listener.address)
        return process.stdout.readline() == "word\n"


def test_a_cut_and_its_end(two: tuple[Machine, Machine]) -> None:
    first, second = two
    assert hears(first, second, patience_s=60)
    assert hears(second, first, patience_s=60)
    first.cut()
    assert not hears(first, second)
    assert not hears(second, first)
    assert "state UP" in first.exec("ip", "link", "show", "eth0").stdout
    first.mend()
    assert hears(first, second, patience_s=60)
    assert hears(second, first, patience_s=60)


def test_a_cut_of_one_direction_and_from_one_peer(rig: Rig, two: tuple[Machine, Machine]) -> None:
    first, second = two
    assert hears(first, second, patience_s=60)
    assert hears(second, first, patience_s=60)
    first.cut(inbound=False)
    assert hears(first, second, patience_s=60)
    assert not hears(second, first)
    first.mend()
    first.cut_from(second)
    assert not hears(second, first)
    assert hears(first, second, patience_s=60)
    third = rig.add("third")
    assert hears(third, first, patience_s=60)
    third.power_off()
    del rig.machines["third"]
    first.mend()
    assert hears(second, first, patience_s=60)


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft (package nftables)")
def test_a_loss_and_its_end(two: tuple[Machine, Machine]) -> None:
    first, second = two
    first.lose(1.0)
    assert not hears(first, second)
    assert hears(second, first, patience_s=60)
    # With three datagrams, one very probably arrives; TCP retransmits all of a stream.
    first.lose(0.01)
    assert hears(first, second, patience_s=60)
    with subprocess.Popen(
        first.enter(sys.executable, "-c", RECEIVE), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        second.exec(sys.executable, "-c", SEND, first.address)
        assert process.stdout.readline() == "all\n"
    first.lose(1.0)
    first.mend()
    assert hears(first, second, patience_s=60)


RECEIVE = """
import socket
with socket.create_server(("", 9)) as server:
    print("ready", flush=True)
    with server.accept()[0] as peer:
        while peer.recv(65536):
            pass
    print("all", flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 9)) as sock:
    sock.sendall(bytes(1 << 20))
"""


def test_a_slow_line(two: tuple[Machine, Machine]) -> None:
    first, second = two
    first.slow("4mbit")
    with subprocess.Popen(
        second.enter(sys.executable, "-c", RECEIVE), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        first.exec(sys.executable, "-c", SEND, second.address)
        assert process.stdout.readline() == "all\n"
    # A megabyte, less what a full bucket lets through at once.
    assert time.monotonic() - began > 1.5


def test_a_power_cut_and_a_boot(rig: Rig) -> None:
    machine = rig.add("phoenix")
    boot_id = machine.exec("cat", "/proc/sys/kernel/random/boot_id").stdout
    card = machine.exec("cat", "/sys/class/net/eth0/address").stdout
    machine.exec("touch", "/run/volatile", "/etc/kept")
    script = "setsid sleep 1000 & setsid sleep 1001 & echo up; wait"
    with subprocess.Popen(machine.enter("sh", "-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        inside = Path(f"/proc/{machine.pid}/ns/pid").readlink()
        machine.power_off()
        assert _in_namespace(inside) == []
    machine.boot()
    assert machine.exec("cat", "/proc/sys/kernel/random/boot_id").stdout != boot_id
    assert machine.exec("cat", "/sys/class/net/eth0/address").stdout == card
    assert "volatile" not in machine.exec("ls", "/run").stdout
    assert machine.exec("ls", "/etc/kept").stdout == "/etc/kept\n"
    assert hears(machine, rig.machines["node-1"], patience_s=60)
    machine.power_off()
    del rig.machines["phoenix"]


def _in_namespace(namespace: Path) -> list[Path]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "ns/pid").readlink() == namespace:
                found.append(entry)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    needs_a_rig()
    made = NamespaceCluster(tmp_path_factory.mktemp("cluster"), agents=3)
    with made:
        yield made
    assert made.leftovers() == []


@pytest.mark.torch
def test_pi_on_three_machines(cluster: NamespaceCluster) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = cluster.muster("submit", "-f", str(PI / "job.yaml"), "--set", f"workdir={PI}")
    job = done.stdout.strip()
    followed = cluster.muster("logs", "-f", "--rank", "all", "--tail", "all", "--exit-status", job)
    assert re.search(r"^\[node-1 r0\] pi = 3\.14159265359", followed.stdout, re.MULTILINE)
    for rank in range(6):
        assert f"[node-{1 + rank // 2} r{rank}] rank {rank} of 6" in followed.stdout


def test_a_job_sees_the_machine_it_is_on(cluster: NamespaceCluster, tmp_path: Path) -> None:
    script = "{ hostname; ip -4 -o address show eth0; } > seen.$MUSTER_NODE_RANK"
    job = submit(cluster, tmp_path, nodes=3, run=script)
    assert wait(cluster, job) == 0
    for rank, machine in enumerate(cluster.machines.values()):
        name, address = (tmp_path / f"seen.{rank}").read_text().splitlines()
        assert name == machine.name == f"node-{rank + 1}"
        assert f" {machine.address}/24 " in address


def test_a_node_whose_power_fails_runs_its_job_again_after_the_boot(
    cluster: NamespaceCluster, tmp_path: Path
) -> None:
    script = "echo $$ >> pids; until [ -e go ]; do sleep 0.05; done"
    job = submit(cluster, tmp_path, run=script)
    await_file(tmp_path / "pids")
    [task] = cluster.client().job(int(job)).attempts[0].tasks
    cluster.machines[task.node].power_off()
    cluster.boot(task.node)
    until(lambda: len((tmp_path / "pids").read_text().split()) == 2, "a second attempt runs")
    (tmp_path / "go").touch()
    assert wait(cluster, job) == 0
    view = cluster.client().job(int(job))
    assert view.state is JobState.SUCCEEDED
    assert len(view.attempts) == 2


WORLD = """
import sys, time
from pathlib import Path
from examples.namespace_cluster import NamespaceCluster
cluster = NamespaceCluster(Path(sys.argv[1]), agents=2, transient=True)
cluster.start()
job = cluster.muster("submit", "--nodes", "2", "--", "sleep", "1000").stdout.strip()
while cluster.client().job(int(job)).state.value != "RUNNING":
    time.sleep(0.01)
print("running", flush=True)
time.sleep(1000) if sys.argv[2] == "killed" else cluster.stop()
"""


def traces(root: Path) -> dict[str, object]:
    """Return the traces of a rig on this machine outside its folder."""
    own = own_cgroup()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": [line for line in mounts if str(root) in line],
        "cgroups": [] if own is None else list(Path(own).glob(cgroup_name(root / "machines"))),
        "processes": [p for p in Path("/proc").glob("[0-9]*/environ") if _names(p, root)],
        "folder": root.exists(),
    }


def _names(environ: Path, root: Path) -> bool:
    try:
        return str(root).encode() in environ.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_nothing_is_left(tmp_path: Path, end: str) -> None:
    needs_a_rig()
    root = tmp_path / "world"
    before = traces(root)
    with subprocess.Popen(
        [sys.executable, "-c", WORLD, str(root), end], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            during = traces(root)
            assert (during["interfaces"], during["mounts"]) == (before["interfaces"], [])
            assert during["processes"]
            if end == "stopped":
                process.wait(300)
        finally:
            process.kill()
    until(lambda: traces(root) == before, "nothing is left of the rig")
