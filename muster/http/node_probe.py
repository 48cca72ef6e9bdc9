"""What the coordinator knows of a node's hardware, and the check that it submits."""

from __future__ import annotations

from typing import Annotated

import msgspec

from muster.http.views import InterfaceView, RdmaView
from muster.protocol.control_channel import Fingerprint
from muster.protocol.disks import DiskHealth
from muster.protocol.gpus import GpuDevice
from muster.protocol.traffic import PortHealth


class ProbedPort(msgspec.Struct, frozen=True):
    """A port of an HCA that jobs may use, in rail order. `near` are the GPUs, as PCI orders them,
    that have no nearer one."""

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
    """As the node saw it when it was made ready for this attempt of a job. `missing`, by the port,
    say why it cannot be used; `unused` are ports that are there and not for jobs; `stops` are why
    RDMA cannot work there at all, `unseen` why nothing is known. `versions` are of the kernel, the
    driver and OFED."""

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
    """What the agent of a node has said of it. `gpus` and `interfaces` are as they are now, as far
    as it is connected; `rdma` is the summary by which nodes are chosen, `fabric` the last whole
    probe, None where no job has been there since the coordinator knows. `ports` and `disks` are
    those that are not as they should be. Limits of processes and all else that `muster probe` reads
    are on the node only."""

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
    """Body of `POST /v1/nodes/{id}/check`. `mib`: from each node to each other on each network;
    `timeout_s`: for a connection; `python`: instead of the nodes' own."""

    mib: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 3.0
    python: str | None = None
