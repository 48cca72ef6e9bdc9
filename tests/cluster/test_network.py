"""The network of a gang on machines that have several: chosen, proved, avoided if it fails."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import NOWHERE, Machine
from examples.rig.rig import missing
from muster.http.views import EventView, JobView
from muster.protocol.outcome import CauseCode
from tests.cluster.jobs import submit, until, wait

FAST = {"node-1": "fast0", "node-2": "fast7", "node-3": "fast0"}


def wire(machine: Machine, name: str) -> None:
    """A network beside the one that leads to the coordinator, and a bridge as docker makes it."""
    machine.exec(*f"ip link add {name} link eth0 type macvlan mode bridge".split())
    machine.exec(*f"ip address add {address(machine)}/24 dev {name}".split())
    machine.exec(*f"ip link set {name} up".split())
    machine.exec(*["ip", "link", "add", "docker0", "type", "bridge"])
    machine.exec(*["ip", "address", "add", "172.17.0.1/16", "dev", "docker0"])
    machine.exec(*["ip", "link", "set", "docker0", "up"])


def address(machine: Machine) -> str:
    return f"10.78.0.{machine.number}"


@pytest.fixture(scope="module")
def rigged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    """Three machines with two networks each."""
    if why := missing():
        pytest.skip(why)
    made = NamespaceCluster(tmp_path_factory.mktemp("cluster"), agents=3)
    for name, machine in made.machines.items():
        wire(machine, FAST[name])
    with made:
        yield made
    assert made.leftovers() == []


def events(cluster: LocalCluster, job: str) -> list[EventView]:
    return list(cluster.client().events(int(job)).events)


def view(cluster: LocalCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
line = [str(int(value.item())), *(os.environ[name] for name in names)]
open(f"rank.{dist.get_rank()}", "w").write(" ".join(line))
dist.destroy_process_group()
"""


@pytest.mark.root
@pytest.mark.torch
def test_a_gang_meets_on_the_best_network_that_all_share(
    rigged: NamespaceCluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(ALL_REDUCE)
    job = submit(rigged, tmp_path, nodes=2, launcher="torchrun", nproc_per_node=1, run=["train.py"])
    assert wait(rigged, job) == 0, rigged.muster("logs", job).stdout
    seen = [(tmp_path / f"rank.{rank}").read_text() for rank in (0, 1)]
    assert seen == ["2 10.78.0.11 fast0 =fast0", "2 10.78.0.11 fast7 =fast7"]
    (attempt,) = view(rigged, job).attempts
    assert attempt.network is not None
    assert attempt.network.startswith("10.78.0.0/24 on fast0, fast7 (Ethernet")
    assert attempt.master is not None
    assert attempt.master.startswith("10.78.0.11:")
    assert f"network {attempt.network}" in rigged.muster("show", job).stdout


@pytest.mark.root
def test_a_node_behind_a_firewall_is_named_and_others_are_taken(
    rigged: NamespaceCluster, tmp_path: Path
) -> None:
    machine, launcher = rigged.machines["node-2"], address(rigged.machines["node-1"])
    # Its frames to the launcher go to nobody. Dropped on the way out, they would take the question
    # for the launcher's hardware address with them, and the kernel then says "no route" at once.
    machine.exec(*f"ip neigh replace {launcher} lladdr {NOWHERE} dev fast7 nud permanent".split())
    try:
        job = submit(rigged, tmp_path, nodes=2, run="echo $MUSTER_NODE_IPS")
        assert wait(rigged, job) == 0
    finally:
        machine.exec("ip", "neigh", "delete", launcher, "dev", "fast7")
    first, second = view(rigged, job).attempts
    assert first.cause is not None
    assert first.cause.code is CauseCode.ARRANGE_FAILED
    assert "node-2 says: node-1 is not reached at 10.78.0.11 port" in first.cause.text
    assert "(does a firewall drop the packets?)" in first.cause.text
    assert first.started_at is None
    assert [t.node for t in second.tasks] == ["node-1", "node-3"]
    assert not [m.name for m in rigged.machines.values() if "muster" in m.hosts()]


@pytest.mark.root
def test_a_network_that_goes_while_agents_run_is_not_used(
    rigged: NamespaceCluster, tmp_path: Path
) -> None:
    machine = rigged.machines["node-3"]
    machine.exec("ip", "address", "delete", f"{address(machine)}/24", "dev", "fast0")
    try:
        job = submit(rigged, tmp_path, nodes=3, run="true")
        assert wait(rigged, job) == 0
    finally:
        machine.exec("ip", "address", "add", f"{address(machine)}/24", "dev", "fast0")
    (attempt,) = view(rigged, job).attempts
    assert attempt.network is not None
    assert attempt.network.startswith("10.77.0.0/24 on eth0 (veth")


def test_a_port_that_is_taken_between_test_and_use_costs_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    waits = '[ "$MUSTER_NODE_RANK.$MUSTER_ATTEMPT" != 1.1 ] || until [ -e go ]; do sleep 0.02; done'
    job = submit(cluster, tmp_path, nodes=2, setup=waits, run="true", retry={"infra": 0})

    def offered() -> list[int]:
        prepared = [e for e in events(cluster, job) if e.kind == "TaskPrepared"]
        return list(prepared[0].fields["prepared"]["ports"]) if prepared else []

    until(lambda: bool(offered()), "the launcher has found its ports")
    thieves = [socket.create_server(("127.0.0.1", port)) for port in offered()]
    try:
        (tmp_path / "go").touch()
        assert wait(cluster, job) == 0, cluster.muster("show", job).stdout
    finally:
        for thief in thieves:
            thief.close()
    first, second = view(cluster, job).attempts
    assert first.cause is not None
    assert (first.cause.node, first.cause.refusal) == ("node-1", "port_taken")
    assert "but another program has taken it since" in first.cause.text
    assert second.cause is not None
    assert second.cause.code is CauseCode.COMPLETED
    assert any("(free budget)" in event.text for event in events(cluster, job))


ENVIRONMENT = "import os; open('interface', 'w').write(os.environ['GLOO_SOCKET_IFNAME'])"


def test_agents_that_share_a_machine_keep_the_addresses_they_were_given(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    script = f'[ $MUSTER_NODE_RANK = 1 ] || "{sys.executable}" -c "{ENVIRONMENT}"'
    job = submit(cluster, tmp_path, nodes=2, run=script)
    assert wait(cluster, job) == 0
    (attempt,) = view(cluster, job).attempts
    assert attempt.network == "127.0.0.0/8 on lo, from the agents' configuration"
    assert attempt.master is not None
    assert attempt.master.startswith("127.0.0.11:")
    assert (tmp_path / "interface").read_text() == "lo"
