"""Ports between launches."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.config import FabricSettings as Settings
from agent.core.inputs import Input, NodeObserved
from agent.monitors.fabric import FabricMonitor
from agent.monitors.traffic.rdma_ports import SHOWN_S, RdmaPortMonitor, RdmaPorts
from muster.daemon.clock import SystemClock
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.traffic import PortHealth
from tests.agent.probe.fabric.trees import Node

PORT = "sys/class/infiniband/mlx5_0/ports/1"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.hca("mlx5_0")
    made.port("mlx5_0", link="InfiniBand")
    made.file(f"{PORT}/counters/link_downed", "7\n")
    return made


def down(node: Node) -> None:
    node.file(f"{PORT}/state", "1: DOWN\n")
    node.file(f"{PORT}/phys_state", "2: Polling\n")


def up(node: Node) -> None:
    node.file(f"{PORT}/state", "4: ACTIVE\n")
    node.file(f"{PORT}/phys_state", "5: LinkUp\n")


def test_a_port_goes_down_and_comes_back(node: Node) -> None:
    ports = RdmaPorts(node.root)
    assert ports.look(0.0) == ()
    down(node)
    node.file(f"{PORT}/counters/link_downed", "8\n")
    (found,) = ports.look(5.0)
    assert found == PortHealth("mlx5_0:1", down=True, state="DOWN, Polling", flaps=1)
    assert "port mlx5_0:1 is down (DOWN, Polling)" in found.text
    up(node)
    (found,) = ports.look(10.0)
    assert found == PortHealth("mlx5_0:1", flaps=1)
    assert "went down 1 time within the hour and is up again" in found.text
    assert ports.look(5.0 + SHOWN_S) == (PortHealth("mlx5_0:1", flaps=1),)
    assert ports.look(5.1 + SHOWN_S) == ()


def test_a_flap_between_two_looks(node: Node) -> None:
    ports = RdmaPorts(node.root)
    ports.look(0.0)
    node.file(f"{PORT}/counters/link_downed", "9\n")
    assert ports.look(5.0) == (PortHealth("mlx5_0:1", flaps=2),)


def test_without_a_counter_the_state_alone_decides(node: Node) -> None:
    shutil.rmtree(node.root / PORT / "counters")
    ports = RdmaPorts(node.root)
    ports.look(0.0)
    down(node)
    ports.look(5.0)
    up(node)
    assert ports.look(10.0) == (PortHealth("mlx5_0:1", flaps=1),)


def test_a_port_that_was_never_up_is_no_news(node: Node) -> None:
    down(node)
    ports = RdmaPorts(node.root)
    assert ports.look(0.0) == ports.look(5.0) == ()
    up(node)
    assert ports.look(10.0) == ()
    down(node)
    assert ports.look(15.0) != ()


def observed(*ports: PortHealth) -> NodeObserved:
    return NodeObserved(NodeChanges(ports=ports))


def test_a_compute_port_that_is_down_from_the_start_is_reported(node: Node) -> None:
    """A dark port on one of two cards is reported; a third port, for storage, is not used by
    jobs."""
    node.hca("mlx5_1", hca_type="MT4129")
    node.file("sys/class/infiniband/mlx5_0/hca_type", "MT4129\n")
    node.port("mlx5_1", link="InfiniBand")
    down(node)
    node.hca("mlx5_2", hca_type="MT4125")
    node.port("mlx5_2", state="1: DOWN", phys="3: Disabled", rate="40 Gb/sec (4X QDR)")
    fabric = FabricMonitor(AgentConfig(fabric=Settings(root=node.root)))
    heard: list[Input] = []

    async def run() -> None:
        posted = asyncio.Event()

        def post(received: Input) -> None:
            heard.append(received)
            posted.set()

        ports = RdmaPorts(node.root, awaited=fabric.awaited)
        await fabric.look()
        watching = asyncio.create_task(RdmaPortMonitor(ports, SystemClock(), post, 0.01).run())
        async with asyncio.timeout(180):
            await posted.wait()
            posted.clear()
            up(node)
            await posted.wait()
        watching.cancel()

    asyncio.run(run())
    assert heard[0] == observed(PortHealth("mlx5_0:1", down=True, state="DOWN, Polling"))
    assert observed() in heard[1:]


def test_ends_that_are_not_cabled_are_no_news(node: Node) -> None:
    node.port("mlx5_0", 2, link="InfiniBand", state="1: DOWN", phys="2: Polling")
    node.hca("mlx5_1")
    node.port("mlx5_1", 1, link="InfiniBand")
    node.port("mlx5_1", 2, link="InfiniBand", state="1: DOWN", phys="2: Polling")
    fabric = FabricMonitor(AgentConfig(fabric=Settings(root=node.root)))
    asyncio.run(fabric.look())
    assert fabric.awaited() == {"mlx5_0:1", "mlx5_1:1"}
    assert RdmaPorts(node.root, awaited=fabric.awaited).look(0.0) == ()


def test_a_driver_that_is_loaded_anew_begins_to_count_anew(node: Node) -> None:
    ports = RdmaPorts(node.root)
    ports.look(0.0)
    node.file(f"{PORT}/counters/link_downed", "0\n")
    assert ports.look(5.0) == ()


def test_a_device_that_goes(node: Node) -> None:
    ports = RdmaPorts(node.root)
    ports.look(0.0)
    shutil.rmtree(node.root / "sys/class/infiniband/mlx5_0")
    (found,) = ports.look(5.0)
    assert (found.down, found.state) == (True, "gone, with its device")


def test_memory_is_the_same_after_a_thousand_looks(node: Node) -> None:
    ports = RdmaPorts(node.root)
    reported = [PortHealth("")]
    for n in range(1000):
        node.file(f"{PORT}/counters/link_downed", f"{n * 100}\n")
        reported = [*ports.look(float(n))]
    assert [port.flaps for port in reported] == [1000]


def test_only_changes_are_posted(node: Node) -> None:
    heard: list[Input] = []

    async def run() -> None:
        changed = asyncio.Event()

        def post(received: Input) -> None:
            heard.append(received)
            changed.set()

        ports = RdmaPorts(node.root)
        ports.look(0.0)
        watching = asyncio.create_task(RdmaPortMonitor(ports, SystemClock(), post, 0.01).run())
        async with asyncio.timeout(180):
            down(node)
            await changed.wait()
            changed.clear()
            up(node)
            await changed.wait()
        watching.cancel()

    asyncio.run(run())
    reported = [received.changes.ports for received in heard if isinstance(received, NodeObserved)]
    assert reported[0] is not None
    assert reported[0][0].down
    assert len(reported) <= 3
