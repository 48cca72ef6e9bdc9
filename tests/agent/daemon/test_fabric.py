"""The fabric of a node is looked at for each launch, beside it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.config import AgentConfig
from agent.config import FabricSettings as Settings
from agent.core.inputs import Input, NodeObserved
from agent.monitors.fabric import FabricMonitor
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.fabric import NodeFabric, NodeRdma
from orchestrator.core.fabric.plan import rdma_problem
from orchestrator.core.fabric.port_slots import FabricMember
from tests.agent.probe.fabric.trees import Node

TASK = TaskId("7.1.0")


def test_each_launch_sees_the_fabric_as_it_is_then(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(3):
        node.hca(f"mlx5_{number}")
        node.port(f"mlx5_{number}", link="InfiniBand")
    config = AgentConfig(fabric=Settings(root=tmp_path, exclude=("mlx5_2",)))

    async def two_launches() -> None:
        fabric = FabricMonitor(config)
        seen = await fabric.look(TASK)
        assert fabric.latest is not None
        assert fabric.latest.env["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
        assert [port.key for port in seen.ports] == ["mlx5_0:1", "mlx5_1:1"]
        node.file("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
        seen = await fabric.look(TASK)
        assert fabric.latest.env["NCCL_IB_HCA"] == "=mlx5_0:1"
        assert [(port.key, port.why) for port in seen.missing] == [
            ("mlx5_1:1", "port DOWN, LinkUp")
        ]

    with capture_logs() as logs:
        asyncio.run(two_launches())
    first, second = logs
    assert (first["event"], first["used"], first["expected"]) == ("fabric", 2, 2)
    assert (second["log_level"], second["used"], second["expected"]) == ("warning", 1, 2)
    assert "mlx5_1:1 is DOWN" in second["errors"][0]


def test_a_node_without_devices_says_nothing(tmp_path: Path) -> None:
    async def launch() -> None:
        fabric = FabricMonitor(AgentConfig(fabric=Settings(root=tmp_path)))
        assert not fabric.there()
        assert await fabric.look(TASK) == NodeFabric()
        assert fabric.latest is None

    with capture_logs() as logs:
        asyncio.run(launch())
    assert logs == []


def cards(node: Node, kind: str, gpu: bool) -> None:
    """Two HCAs that no driver serves, and perhaps a GPU."""
    for bus in (1, 2):
        node.pci(f"pci0000:00/0000:00:0{bus}.0/0000:0{bus}:00.0", kind, "15b3", "1021")
    if gpu:
        node.gpu("pci0000:00/0000:00:05.0/0000:05:00.0")


@pytest.mark.parametrize(
    ("kind", "gpu", "what"),
    [
        ("0x020700", False, "2 InfiniBand PCI functions (15b3:1021) without an RDMA device"),
        ("0x020000", True, "2 network functions (15b3:1021) that could do RoCE"),
        ("0x020000", False, None),
    ],
)
def test_cards_without_their_driver_are_reported_to_the_plan(
    tmp_path: Path, kind: str, gpu: bool, what: str | None
) -> None:
    node = Node(tmp_path)
    cards(node, kind, gpu)
    fabric = FabricMonitor(AgentConfig(fabric=Settings(root=tmp_path)))

    async def launch() -> NodeFabric:
        return await fabric.look(TASK)

    assert fabric.there() == (what is not None)
    seen = asyncio.run(launch())
    if what is None:
        assert seen == NodeFabric()
        return
    (why,) = seen.stops
    assert why.startswith(what)
    assert rdma_problem(FabricMember("n1", seen, seen.ports)) == f"cannot use RDMA: {why}"
    # The driver comes: the next launch sees its devices.
    node.hca("mlx5_0")
    node.port("mlx5_0", link="InfiniBand")
    seen = asyncio.run(launch())
    assert ([port.key for port in seen.ports], seen.stops) == (["mlx5_0:1"], ())


def test_between_launches_a_change_is_reported_to_the_scheduler(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.hca("mlx5_0", hca_type="MT4129")
    node.port("mlx5_0", link="InfiniBand")
    heard: list[NodeRdma | None] = []

    async def life() -> None:
        posted = asyncio.Event()

        def post(received: Input) -> None:
            assert isinstance(received, NodeObserved)
            heard.append(received.changes.rdma)
            posted.set()

        fabric = FabricMonitor(AgentConfig(fabric=Settings(root=tmp_path)), post)
        watching = asyncio.create_task(fabric.run())
        async with asyncio.timeout(180):
            await fabric.look()
            node.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
            posted.clear()
            fabric.stir()
            await posted.wait()
            shutil.rmtree(tmp_path / "sys/class/infiniband")
            posted.clear()
            fabric.stir()
            await posted.wait()
        watching.cancel()

    with capture_logs():
        asyncio.run(life())
    up, down, gone = heard
    assert up is not None
    assert down is not None
    assert (up.ports, down.ports, down.expected) == (1, 0, 1)
    assert "port DOWN" in down.why
    assert gone == NodeRdma(why="has no RDMA device that jobs can use")


def test_devices_that_may_not_be_looked_at_are_unknown(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.link("sys/class/infiniband", "infiniband")
    heard: list[Input] = []

    async def launch() -> NodeFabric:
        fabric = FabricMonitor(AgentConfig(fabric=Settings(root=tmp_path)), heard.append)
        assert fabric.there()
        assert not fabric.devices()
        return await fabric.look(TASK)

    with capture_logs():
        seen = asyncio.run(launch())
    assert seen.unseen == "its RDMA devices: circular links"
    assert heard == [NodeObserved(NodeChanges())]
