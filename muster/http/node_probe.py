"""Hardware of a node as known to the coordinator, and the node check that it submits."""

from __future__ import annotations

from typing import Annotated

import msgspec

from muster.http.views import InterfaceView, RdmaView
from muster.protocol.link.control_channel import Fingerprint
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.traffic import PortHealth


class ProbedPort(msgspec.Struct, frozen=True):
    """An HCA port for jobs, in rail order. `near` are the GPUs (in PCI order) that have no nearer
    port.
    """

    name: str
    port: int
    pci: str
    link_layer: str
    model: str
    rate_gbps: float | None
    numa_node: int | None
    netdev: str
    mtu: int | None
    addresses: tuple[str, ...]
    near: tuple[int, ...]


class ProbedFabric(msgspec.Struct, frozen=True):
    """The node's fabric when it was prepared for this attempt of a job. `missing` has the reason
    for each unusable port; `unused` are ports not meant for jobs; `stops` are reasons why RDMA
    cannot work there, `unseen` why nothing is known. `versions` are of the kernel, the driver and
    OFED. `nccl`, `nccl_conf` and `software` are empty for those who may not read the job.
    """

    job: int
    attempt: int
    ports: tuple[ProbedPort, ...]
    missing: dict[str, str]
    unused: tuple[str, ...]
    stops: tuple[str, ...]
    unseen: str
    gpudirect: str
    nccl: str
    nccl_conf: dict[str, str]
    settings: dict[str, str]
    versions: dict[str, str]
    software: Fingerprint


class NodeProbe(msgspec.Struct, frozen=True):
    """The agent's reports about a node. `gpus` and `interfaces` are current while it is connected.
    `rdma` is the summary used for placement. `fabric` is the last full probe, None if no job has
    been there since the coordinator knows the node. `ports` and `disks` list only abnormal ones.
    Process limits and the rest of `muster probe` are available on the node only.
    """

    node: str
    connected: bool
    version: str
    boot_id: str
    machine_id: str
    hostname: str
    cpus: int
    memory_bytes: int
    python: str
    gpus: tuple[GpuDevice, ...]
    interfaces: tuple[InterfaceView, ...]
    rdma: RdmaView | None
    ports: tuple[PortHealth, ...]
    disks: tuple[DiskHealth, ...]
    fabric: ProbedFabric | None


class CheckRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/check`. `mib` is sent between each pair of nodes on each
    network; `timeout_s` is for a connection; `python` replaces the nodes' own.
    """

    mib: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 3.0
    python: str | None = None
