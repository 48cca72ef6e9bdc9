"""Responses about a job's fabric: the plan of its last attempt, with the reason for each value."""

from __future__ import annotations

import msgspec

from muster.protocol.observations.traffic import JobProof


class RailView(msgspec.Struct, frozen=True):
    """Common properties of a rail's ports on all nodes; None is unknown. `mtu` is that of the RoCE
    interfaces.
    """

    rail: int
    link_layer: str | None
    model: str | None
    rate_gbps: float | None
    sm_lid: int | None
    mtu: int | None


class PlannedPort(msgspec.Struct, frozen=True):
    """A port that a node uses. `gpus` (numbers in PCI order) are those without a nearer port."""

    rail: int
    hca: str
    pci: str | None
    numa_node: int | None
    rate_gbps: float | None
    netdev: str | None
    addresses: tuple[str, ...]
    gid_index: int | None
    gpus: tuple[int, ...]


class VariableView(msgspec.Struct, frozen=True):
    """A network variable. `value` is what the job gets, with the reason in `why`. `planned` is the
    plan's value if the job's own `env` overrides it.
    """

    name: str
    value: str
    why: str
    planned: str | None = None


class NodeFabricView(msgspec.Struct, frozen=True):
    """A node of the plan. `missing` are ports that it would use if they worked, with the reasons.
    `interface` and `address` are for non-RDMA traffic. `nccl` is the version assumed for the
    environment, None if unknown.
    """

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
    settings: tuple[VariableView, ...]


class PlanView(msgspec.Struct, frozen=True):
    """The plan. `transport` is rdma, tcp (RDMA is disabled for NCCL) or open (nothing is set,
    because there is no choice). `text` explains it; `notes` are other differences; `network` is the
    gang's network.
    """

    transport: str
    text: str
    rails: tuple[RailView, ...]
    nodes: tuple[NodeFabricView, ...]
    notes: tuple[str, ...]
    network: str | None


class FabricView(msgspec.Struct, frozen=True):
    """Response of `GET /v1/jobs/{id}/fabric`. `rdma` is the job's setting. `plan` is that of its
    last attempt, None before its nodes are ready. `proof` is the verdict on its traffic, None
    before the start. `refused` is why there will be no plan, because its nodes differ.
    """

    job: int
    attempt: int | None
    rdma: str
    plan: PlanView | None
    proof: JobProof | None = None
    refused: str | None = None
