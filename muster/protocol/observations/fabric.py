"""Input of a gang's fabric plan from each node, and the plan sent to each task.

Ports and GPUs are arrays on the wire and in the journal: a gang has thousands. Fields are added at
their ends, with defaults. None and "" are "unknown", which never counts as a difference.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.spec.model import Rdma

PORTS_MAX: Final = 64
GPUS_MAX: Final = 64
TEXT_MAX: Final = 200
TEXTS_MAX: Final = 8
"""Limits of an agent's report, so that no sysfs content makes a message too large."""


class PortGids(msgspec.Struct, frozen=True, array_like=True):
    """Addresses of one family in a RoCE port's GID table.

    `index`: the entry that NCCL chooses itself. If `ranged`, NCCL chooses it only with a setting:
    the operator's network, or without one the index. `fit`: all suitable entries.
    """

    index: int
    fit: tuple[int, ...] = ()
    ranged: bool = False


class FabricPort(msgspec.Struct, frozen=True, array_like=True):
    """An HCA port chosen by the node's probe.

    `prefix` is the subnet's part of an InfiniBand port's GID. `netdev` is the interface that
    carries its addresses, with `mtu`. `table`: the whole GID table was read, so a family without
    PortGids has no address. `sparse`: it has holes. `near` are the GPUs (numbers in PCI order) that
    have no nearer port.
    """

    name: str
    port: int
    pci: str = ""
    link_layer: str = ""
    model: str = ""
    rate_gbps: float | None = None
    numa_node: int | None = None
    sm_lid: int | None = None
    prefix: str = ""
    netdev: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    table: bool = False
    sparse: bool = False
    fourth: PortGids | None = None
    sixth: PortGids | None = None
    near: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """mlx5_0:1, in the notation of NCCL and UCX."""
        return f"{self.name}:{self.port}"


class MissingPort(msgspec.Struct, frozen=True, array_like=True):
    """A port of the compute class that cannot be used now, and `why`."""

    key: str
    pci: str
    why: str


class FabricGpu(msgspec.Struct, frozen=True, array_like=True):
    """A GPU in PCI order. `ways` are its distances to the node's ports, as
    `muster.fabric.topology.way` returns them.
    """

    pci: str
    uuid: str = ""
    ways: tuple[int, ...] = ()


class NodeFabric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's fresh probe, reduced to the input of its gang's plan. Without ports and texts, the
    node has no RDMA equipment.

    `ports` are for jobs, in rail order (by PCI address); `missing` are ports that would be used if
    they worked; `group` names the class. `unused` are ports that NCCL would take without a setting.
    `stops`: why RDMA cannot work on the node at all. `unseen`: why nothing is known. `range` is the
    network required by the operator. `nccl` is the version found beside the jobs' interpreter;
    `nccl_conf` are the settings in NCCL's files there that select its transport and addresses.
    `versions` are of the kernel, the driver and OFED. `fingerprint` is a digest of the hardware and
    its cabling. `gpus` are present if the task has only some of them. `unfit` are ports that NCCL
    uses through a plugin or never (EFA), each with the reason. `settings` are the operator's own
    for NCCL; `ucx` is the version found.
    """

    group: str = ""
    ports: tuple[FabricPort, ...] = ()
    missing: tuple[MissingPort, ...] = ()
    unused: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    unseen: str = ""
    range: str = ""
    gpus: tuple[FabricGpu, ...] = ()
    nccl: str = ""
    nccl_conf: dict[str, str] = {}
    gpudirect: str = ""
    versions: dict[str, str] = {}
    fingerprint: str = ""
    unfit: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    ucx: str = ""


class NodeRdma(msgspec.Struct, frozen=True, omit_defaults=True):
    """Last reported RDMA equipment of a node. Placement uses it, while the plan for a gang uses
    fresh probes.

    `group` names the class; jobs can use `ports` of its `expected` ports now. Nodes of one `kind`
    agree in everything that a plan compares. `why`: the reason for no ports, as text that follows
    the node's name.
    """

    group: str = ""
    ports: int = 0
    expected: int = 0
    kind: str = ""
    why: str = ""


class TaskFabric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task's part of the fabric plan.

    `hcas` are ports (mlx5_0:1) in rail order, the same number on all nodes of the gang; empty means
    that the gang uses TCP. `netdevs` are their interfaces and those for sockets. `nccl_debug`: the
    user wants verbose NCCL logs.
    """

    rdma: Rdma = Rdma.PREFERRED
    hcas: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    nccl_debug: bool = False
