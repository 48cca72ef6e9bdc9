"""Nodes with fabrics, for tests of the plan."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from muster.fabric.nccl_version import Version
from muster.protocol.observations.fabric import FabricPort, MissingPort, NodeFabric, PortGids
from muster.spec.model import Rdma
from orchestrator.core.fabric.plan import FabricRequest, PlanRefused, plan
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import FabricPlan

SLOTS = ("1a", "3c", "4d", "5e", "9c", "bc", "cc", "dc")
NEW: Version = (2, 27)
REQUIRED, PREFERRED, OFF = (
    FabricRequest(rdma) for rdma in (Rdma.REQUIRED, Rdma.PREFERRED, Rdma.OFF)
)


def ib(number: int, **more: Any) -> FabricPort:
    """A port as a DGX H100 has eight."""
    pci = f"0000:{SLOTS[number]}:00.0"
    port = FabricPort(
        f"mlx5_{number}", 1, pci, "InfiniBand", "MT4129", 400.0, sm_lid=1, netdev=f"ib{number}"
    )
    return replace(port, prefix="fe80:0000:0000:0000", mtu=4092, **more)


def roce(number: int, index: int = 3, **more: Any) -> FabricPort:
    pci = f"0000:{SLOTS[number]}:00.0"
    port = FabricPort(
        f"mlx5_{number}", 1, pci, "Ethernet", "MT4129", 400.0, netdev=f"eth{number}", mtu=9000
    )
    port = replace(port, table=True, fourth=PortGids(index, (index,)))
    return replace(port, **more)


def node(name: str, *ports: FabricPort, nccl: Version | None = NEW, **more: Any) -> FabricMember:
    gpus = more.pop("gpus", 8)
    return FabricMember(name, NodeFabric(ports=ports, **more), ports, gpus, nccl)


def full(name: str, count: int = 8, **more: Any) -> FabricMember:
    return node(name, *(ib(number) for number in range(count)), **more)


def without(name: str, number: int, **more: Any) -> FabricMember:
    """Make a node whose port of that number is down."""
    missing = MissingPort(f"mlx5_{number}:1", ib(number).pci, "port DOWN, Polling")
    ports = (ib(other) for other in range(8) if other != number)
    return node(name, *ports, missing=(missing,), **more)


def changed(name: str, number: int, make: Any = ib, count: int = 8, **values: Any) -> FabricMember:
    """Make a node whose port of that number differs."""
    ports = [make(other) for other in range(count)]
    ports[number] = replace(ports[number], **values)
    return node(name, *ports)


def planned(
    gang: list[FabricMember], wish: FabricRequest = PREFERRED, met: list[FabricMember] | None = None
) -> FabricPlan:
    found = plan(gang, wish, met or ())
    assert isinstance(found, FabricPlan), found
    return found


def refused(gang: list[FabricMember], met: list[FabricMember] | None = None) -> PlanRefused:
    found = plan(gang, REQUIRED, met or ())
    assert isinstance(found, PlanRefused), found
    return found
