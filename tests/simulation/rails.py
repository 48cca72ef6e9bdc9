"""HCAs of the simulated machines: most are alike, some differ, and some jobs must have RDMA."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.observations.fabric import FabricPort, NodeFabric
from muster.spec.model import JobSpec, Rdma
from tests.simulation.world import World

FIRST_RAILED: Final = 350
"""From this seed on machines have HCAs. Those before stay the runs that they were."""

_PORTS: Final = 2
_NONE: Final = NodeFabric()


def fabric_of(world: World, name: NodeName) -> NodeFabric:
    """Return a machine's fabric, for the whole run."""
    own = random.Random(f"rails {world.seed} {name}")
    if world.seed < FIRST_RAILED or own.random() < 0.15:
        return _NONE
    ports = tuple(
        FabricPort(f"mlx5_{at}", 1, f"0000:0{at}:00.0", "InfiniBand", "MT4129", 400.0, sm_lid=1)
        for at in range(_PORTS)
    )
    if own.random() < 0.15:
        odd = msgspec.structs.replace(ports[-1], rate_gbps=200.0)
        ports = (*ports[:-1], odd)
    return NodeFabric(group="InfiniBand MT4129", ports=ports)


def with_wish(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Perhaps a job that must have RDMA, or must not."""
    own = random.Random(f"rdma {world.seed} {number}")
    if world.seed < FIRST_RAILED:
        return spec
    wish = own.choice((Rdma.PREFERRED, Rdma.PREFERRED, Rdma.REQUIRED, Rdma.OFF))
    return msgspec.structs.replace(spec, rdma=wish)


def agree(used: list[tuple[NodeFabric, tuple[str, ...]]]) -> str | None:
    """Return the fault of the ports that the nodes of a gang use, by their real hardware; None if
    there is none."""
    if len({len(hcas) for _, hcas in used}) > 1:
        return f"its nodes use {sorted(len(hcas) for _, hcas in used)} ports"
    for rail in range(len(used[0][1])):
        kinds = set()
        for fabric, hcas in used:
            port = next((port for port in fabric.ports if port.key == hcas[rail]), None)
            if port is None:
                return f"there is no {hcas[rail]}"
            kinds.add((port.link_layer, port.model, port.rate_gbps, port.sm_lid))
        if len(kinds) > 1:
            return f"the ports of its rail {rail} are {kinds}"
    return None
