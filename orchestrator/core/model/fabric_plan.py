"""The fabric plan of a gang, as the journal keeps it, without repetition.

Nodes with the same plan share an entry: a gang of a thousand identical nodes has one.
"""

from __future__ import annotations

import enum

import msgspec


class FabricTransport(enum.Enum):
    """The transport of the traffic between nodes.

    TCP: NCCL is set to ignore RDMA. OPEN: NCCL gets no setting, as it has nothing to choose from.
    """

    RDMA = "rdma"
    TCP = "tcp"
    OPEN = "open"


class Rail(msgspec.Struct, frozen=True, array_like=True):
    """The common properties of a rail's ports on all nodes; None and "" are unknown.

    `pci` is set if the ports are in the same slot everywhere, `mtu` is that of RoCE's interfaces.
    `place` is the rail's position among all places of the gang's layout, -1 in old plans.
    """

    pci: str = ""
    link_layer: str = ""
    model: str = ""
    rate_gbps: float | None = None
    sm_lid: int | None = None
    prefix: str = ""
    mtu: int | None = None
    place: int = -1


class NodePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan of a node: its ports in rail order, their network interfaces, its jobs' environment.

    `nccl` is the NCCL version (2.27) that the environment is for, "" if unknown.
    """

    hcas: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    nccl: str = ""


class FabricPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` says what was decided and why.

    `nodes` has, by node rank, the index of each node's plan in `kinds`; if empty, all have the
    first. `family` is the address family of RoCE. `notes` are sentences about differences that are
    left out. `places` counts the places of the gang's layout, including ports that are down; 0 in
    old plans.
    """

    transport: FabricTransport
    text: str
    rails: tuple[Rail, ...] = ()
    kinds: tuple[NodePlan, ...] = ()
    nodes: tuple[int, ...] = ()
    family: str = ""
    notes: tuple[str, ...] = ()
    places: int = 0

    def of(self, rank: int) -> NodePlan:
        """Return the plan of a node that was in the gang when it was arranged."""
        if not self.nodes:
            return self.kinds[0] if self.kinds else NodePlan()
        return self.kinds[self.nodes[rank]]
