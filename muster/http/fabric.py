"""What the HTTP API answers about a job's fabric: the plan of its last attempt, and why each value
is what it is."""

from __future__ import annotations

import msgspec

from muster.protocol.traffic import JobProof


class RailView(msgspec.Struct, frozen=True):
    """What the ports of a rail have in common on all nodes; None is unknown. `mtu` is that of the
    interfaces of RoCE."""

    rail: int
    link_layer: str | None
    model: str | None
    rate_gbps: float | None
    sm_lid: int | None
    mtu: int | None


class PlannedPort(msgspec.Struct, frozen=True):
    """A port that a node uses. `gpus`, numbered in PCI order, have no nearer one."""

    rail: int
    hca: str
    pci: str | None
    numa_node: int | None
    rate_gbps: float | None
    netdev: str | None
    addresses: tuple[str, ...]
    gid_index: int | None
    gpus: tuple[int, ...]


class Setting(msgspec.Struct, frozen=True):
    """A variable for the network. `value` is what the job gets and `why`; `planned` is the plan's
    value where the job's own `env` has another, which wins."""

    name: str
    value: str
    why: str
    planned: str | None = None


class NodeFabricView(msgspec.Struct, frozen=True):
    """One node. `missing` are ports that it would use were they in order, and why they are not;
    `interface` and `address` are for everything that is not RDMA. `nccl` is the version for which
    the environment is made, None where it is not known."""

    node: str
    node_rank: int
    ports: tuple[PlannedPort, ...]
    missing: tuple[str, ...]
    interface: str | None
    address: str
    nccl: str | None
    gpudirect: str | None
    versions: dict[str, str]
    fingerprint: str | None
    settings: tuple[Setting, ...]


class PlanView(msgspec.Struct, frozen=True):
    """`transport`: rdma, tcp (NCCL is told to leave RDMA alone) or open (nothing is set, as there
    is nothing to choose from). `text` says so and why; `notes` what else differs; `network` is the
    one on which the gang meets."""

    transport: str
    text: str
    rails: tuple[RailView, ...]
    nodes: tuple[NodeFabricView, ...]
    notes: tuple[str, ...]
    network: str | None


class FabricView(msgspec.Struct, frozen=True):
    """Of `GET /v1/jobs/{id}/fabric`. `rdma` is what the job asks for; `plan` is that of its last
    attempt, None before its nodes are ready. `proof` says what carried its traffic, None before
    the gang has started. `refused`: why there will be no plan, as its nodes differ."""

    job: int
    attempt: int | None
    rdma: str
    plan: PlanView | None
    proof: JobProof | None = None
    refused: str | None = None
