"""The fabric of a node is looked at for each launch, beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from agent.config import AgentConfig
from agent.config import Fabric as Settings
from agent.fabric import Fabric
from muster.protocol.fabric import NodeFabric
from muster.protocol.ids import TaskId
from tests.agent.probe.fabric.trees import Node

TASK = TaskId("7.1.0")


def test_each_launch_sees_the_fabric_as_it_is_then(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(3):
        node.hca(f"mlx5_{number}")
        node.port(f"mlx5_{number}", link="InfiniBand")
    config = AgentConfig(fabric=Settings(root=tmp_path, exclude=("mlx5_2",)))

    async def two_launches() -> None:
        fabric = Fabric(config)
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
        fabric = Fabric(AgentConfig(fabric=Settings(root=tmp_path)))
        assert not fabric.there()
        assert await fabric.look(TASK) == NodeFabric()
        assert fabric.latest is None

    with capture_logs() as logs:
        asyncio.run(launch())
    assert logs == []
