"""Registrations of one agent and of made-up ones: the journal takes few, the state the newest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import PROTOCOL_MAX, Hello, Inventory, NodeObservations
from muster.protocol.observations.fabric import NodeRdma
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from tests.orchestrator.core.playbook import INVENTORY, Cluster

N0 = NodeName("n0")
GPUS = tuple(GpuDevice(f"0000:{n:02x}:00.0", f"GPU-{n}", "NVIDIA H100") for n in range(8))
DAY = 86400.0


def durable(cluster: Cluster) -> list[f.Fact]:
    return [x for x in cluster.facts if x.durability is not Durability.EPHEMERAL]


def registrations(cluster: Cluster) -> list[cf.NodeRegistered]:
    return [x for x in cluster.facts if isinstance(x, cf.NodeRegistered)]


def heartbeat(cluster: Cluster, **news: Any) -> None:
    cluster.observe(N0, **news)


def busy(number: int) -> tuple[GpuDevice, ...]:
    return (msgspec.structs.replace(GPUS[0], busy=f"is used by {number}"), *GPUS[1:])


def faulty(number: int) -> tuple[GpuDevice, ...]:
    return (msgspec.structs.replace(GPUS[0], fault=f"has fault {number}"), *GPUS[1:])


def test_gpus_that_foreign_processes_use_now_and_then_leave_no_trace_in_the_journal() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8, gpu_model="NVIDIA H100")
    before = len(durable(cluster))
    for number in range(100):
        heartbeat(cluster, devices=busy(number))
        assert cluster.state.nodes[N0].inventory.devices[0].busy == f"is used by {number}"
    assert len(durable(cluster)) == before
    heartbeat(cluster, devices=GPUS)
    assert cluster.state.nodes[N0].inventory.devices == GPUS
    assert len(durable(cluster)) == before


def test_a_new_process_hears_from_the_hello_which_gpus_are_used() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=busy(1), gpus=8)
    after = Cluster(state=cluster.replayed())
    assert after.state.nodes[N0].inventory.devices == GPUS
    after.join("n0", devices=busy(1), gpus=8)
    assert after.state.nodes[N0].inventory.devices == busy(1)
    assert registrations(after) == []


@pytest.mark.parametrize("how", ["hello", "heartbeat"])
def test_an_inventory_that_changes_all_the_time_is_seldom_recorded(how: str) -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8)
    for number in range(500):
        if how == "hello":
            cluster.leave("n0")
            cluster.join("n0", devices=GPUS, gpus=8, labels={"n": str(number)})
            assert cluster.state.nodes[N0].inventory.labels == {"n": str(number)}
        else:
            heartbeat(cluster, devices=faulty(number))
            assert cluster.state.nodes[N0].inventory.devices[0].fault == f"has fault {number}"
        cluster.pass_time(2.0)
    assert cluster.refused == []
    assert len(registrations(cluster)) <= 10
    # The newest reaches the journal in the end, although the agent does not repeat it.
    cluster.beat(700.0)
    replayed = cluster.replayed().nodes[N0]
    assert replayed.inventory == cluster.state.nodes[N0].inventory
    recorded = len(durable(cluster))
    cluster.beat(700.0)
    assert len(durable(cluster)) == recorded


def test_a_day_of_changes_makes_few_records() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8)
    for number in range(int(DAY / 10)):
        heartbeat(cluster, devices=faulty(number))
        cluster.mono += 10.0
    assert 100 < len(registrations(cluster)) <= 160


def test_a_node_that_boots_again_and_again_is_let_in_seldom() -> None:
    cluster = Cluster()
    cluster.join("n0")
    for number in range(100):
        if cluster.state.sessions:
            cluster.leave("n0")
        hello(cluster, boot_id=f"boot {number}")
    assert set(cluster.refused) == {"registers_often"}
    assert len(registrations(cluster)) == 16
    cluster.pass_time(600.0)
    hello(cluster, boot_id="the last")
    assert cluster.state.nodes[N0].boot_id == "the last"


def test_changes_of_an_inventory_leave_room_for_boots() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8)
    for number in range(100):
        heartbeat(cluster, devices=faulty(number))
    cluster.leave("n0")
    hello(cluster, boot_id="another")
    assert cluster.refused == []
    assert cluster.replayed().nodes[N0].boot_id == "another"


def test_nothing_is_registered_while_the_disk_is_full() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8)
    cluster.turn(s.DiskSpaceChecked("/var is full"))
    before = len(durable(cluster))
    heartbeat(cluster, devices=faulty(1))
    assert cluster.state.nodes[N0].inventory.devices == faulty(1)
    cluster.join("n1")
    cluster.leave("n0")
    hello(cluster, boot_id="another")
    assert cluster.refused == ["disk_full", "disk_full"]
    assert len(durable(cluster)) == before
    cluster.turn(s.DiskSpaceChecked(""))
    cluster.join("n1")
    hello(cluster, devices=faulty(1), gpus=8)
    assert cluster.replayed().nodes[N0].inventory.devices == faulty(1)
    assert cluster.replayed().nodes.keys() == {"n0", "n1"}


def test_a_node_that_connects_without_pause_is_asked_to_wait() -> None:
    """Each time, its running tasks are recorded as unreachable and as reachable again."""
    cluster = Cluster()
    for number in range(200):
        if cluster.state.nodes and cluster.node("n0").session is not None:
            cluster.leave("n0")
        hello(cluster)
        assert (cluster.refused == []) is (number < 60)
    assert set(cluster.refused) == {"connects_often"}
    cluster.pass_time(2.0)
    cluster.refused.clear()
    hello(cluster)
    assert cluster.refused == []


def test_made_up_names_are_bounded_by_the_hour_and_in_all() -> None:
    cluster = Cluster()
    cluster.limits = msgspec.structs.replace(cluster.limits, new_nodes_per_hour=20, nodes_max=50)
    for number in range(100):
        cluster.join(f"fake{number}", machine_id=f"m{number}", shared_host=True)
    assert len(cluster.state.nodes) == 20
    assert set(cluster.refused) == {"too_many_new_nodes"}
    cluster.refused.clear()
    for hour in range(4):
        cluster.mono += 3600.0
        for number in range(20):
            cluster.join(f"fake{hour}-{number}", shared_host=True)
    assert len(cluster.state.nodes) == 50
    assert set(cluster.refused) == {"too_many_nodes"}
    cluster.refused.clear()
    cluster.leave("fake0")
    cluster.join("fake0", machine_id="m0", shared_host=True)
    assert cluster.refused == []


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("labels", {"labels": {f"label{n}": "x" for n in range(257)}}),
        ("labels.big", {"labels": {"big": "x" * 900_000}}),
        ("hostname", {"hostname": "x" * 300}),
        ("machine_id", {"machine_id": "x" * 300}),
        ("python", {"python": "x" * 5000}),
        ("pool", {"pool": "x" * 300}),
        ("gpu_model", {"gpu_model": "x" * 300}),
        ("rdma", {"rdma": NodeRdma(why="x" * 5000)}),
        ("devices", {"devices": (GpuDevice("a", "GPU-0", path=("x" * 5000,)),)}),
        ("devices", {"devices": tuple(GpuDevice(f"{n}", model="x" * 200) for n in range(1000))}),
    ],
)
def test_an_inventory_that_is_too_large_is_refused_by_its_field(
    field: str, fields: dict[str, Any]
) -> None:
    cluster = Cluster()
    found = cluster.turn(
        s.HelloReceived(SessionId(1), said(**fields), "127.0.0.1"),
    )
    assert cluster.refused == ["bad_inventory"]
    (refused,) = [x.refused for x in found.effects if hasattr(x, "refused")]
    assert f": {field} " in refused.text
    assert len(refused.text) < 400
    assert durable(cluster)[1:] == []


@pytest.mark.parametrize("field", ["agent_id", "boot_id", "version", "cluster", "instance"])
def test_words_of_a_hello_are_bounded(field: str) -> None:
    cluster = Cluster()
    words = msgspec.structs.replace(said(), **{field: "x" * 900_000})
    found = cluster.turn(s.HelloReceived(SessionId(1), words, "127.0.0.1"))
    assert cluster.refused == ["bad_hello"]
    (refused,) = [x.refused for x in found.effects if hasattr(x, "refused")]
    assert refused.text.startswith(field)
    assert len(refused.text) < 400


def test_a_heartbeat_that_is_too_large_changes_nothing() -> None:
    cluster = Cluster()
    cluster.join("n0", devices=GPUS, gpus=8)
    heartbeat(cluster, rdma=NodeRdma(why="x" * 5000))
    heartbeat(cluster, devices=tuple(GpuDevice(f"{n}", model="x" * 200) for n in range(1000)))
    assert cluster.state.nodes[N0].inventory.devices == GPUS
    assert cluster.state.nodes[N0].inventory.rdma is None


def test_a_big_node_that_is_honest_is_let_in() -> None:
    cluster = Cluster()
    gpus = tuple(
        GpuDevice(
            f"0000:{n:02x}:00.0",
            f"GPU-{n:08x}-1111-2222-3333-444444444444",
            "NVIDIA H100 80GB HBM3",
            80 << 30,
            n // 8,
            tuple(f"0000:{n:02x}:{level:02x}.0" for level in range(8)),
            busy="is used by a process that no job of Muster has started (pid 4194304, python3)",
        )
        for n in range(16)
    )
    nics = tuple(
        Interface(
            f"enp{n}s0f0np0",
            InterfaceKind.ETHERNET,
            tuple(f"fdaa:bbbb:cccc:dddd:1111:2222:{n:x}333:{at:x}444/64" for at in range(16)),
            rdma=True,
            mtu=9000,
            speed_mbps=400_000,
        )
        for n in range(12)
    )
    labels = {f"topology.example.com/label-{n}": f"value-{n}-of-rack-17" for n in range(256)}
    rdma = NodeRdma("mlx5 400 Gb/s", 12, 12, "x" * 64)
    cluster.join("n0", devices=gpus, gpus=16, interfaces=nics, labels=labels, rdma=rdma)
    assert cluster.refused == []
    assert cluster.state.nodes[N0].inventory.devices == gpus


def said(boot_id: str = "boot-n0", **inventory: Any) -> Hello:
    described: Inventory = msgspec.structs.replace(INVENTORY, **inventory)
    return Hello(
        N0, "id-n0", boot_id, "0.1.0", NodeObservations(described), protocol_max=PROTOCOL_MAX
    )


def hello(cluster: Cluster, **fields: Any) -> None:
    cluster.sessions += 1
    cluster.turn(s.HelloReceived(SessionId(cluster.sessions), said(**fields), "127.0.0.1"))
