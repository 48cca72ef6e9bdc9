"""The fabric plan of a gang, as the journal keeps it: what was decided, each thing once.

Nodes that are told the same share an entry: a gang of a thousand alike has one.
"""

from __future__ import annotations

import enum

import msgspec


class Transport(enum.Enum):
    """What carries the traffic between the nodes. TCP: NCCL is told to leave RDMA alone. OPEN: it
    is told nothing, as there is nothing for it to choose from."""

    RDMA = "rdma"
    TCP = "tcp"
    OPEN = "open"


class Rail(msgspec.Struct, frozen=True, array_like=True):
    """What the ports of a rail have in common on all nodes; None and "" are unknown. `pci` where
    they are in the same slot everywhere, `mtu` of RoCE's interfaces. `place` is that of the rail
    among all places of the gang's layout, -1 in plans of old."""

    pci: str = ""
    link_layer: str = ""
    model: str = ""
    rate_gbps: float | None = None
    sm_lid: int | None = None
    prefix: str = ""
    mtu: int | None = None
    place: int = -1


class NodePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node is told: its ports in rail order, the interfaces that carry their addresses, the
    environment of its jobs, and for which NCCL (2.27) that is, "" where it is not known."""

    hcas: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    nccl: str = ""


class FabricPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` says what was decided and why. `nodes` has, by node rank, the place of each node's
    plan in `kinds`; empty: all have the first. `family` is that of the addresses of RoCE. `notes`
    are sentences about what differs and is left out. `places`: how many the gang's layout has, with
    those of ports that are down; 0 in plans of old."""

    transport: Transport
    text: str
    rails: tuple[Rail, ...] = ()
    kinds: tuple[NodePlan, ...] = ()
    nodes: tuple[int, ...] = ()
    family: str = ""
    notes: tuple[str, ...] = ()
    places: int = 0

    def of(self, rank: int) -> NodePlan:
        """The plan of one of the nodes with which the gang was arranged."""
        if not self.nodes:
            return self.kinds[0] if self.kinds else NodePlan()
        return self.kinds[self.nodes[rank]]
