"""What a gang's fabric plan needs of each node, and what a node's task is told of the plan.

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
"""Bounds of what an agent reports, so that no node's sysfs makes a message too large."""


class PortGids(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of one family in a RoCE port's GID table.

    `index`: the entry that NCCL takes by itself, or where `ranged` the one that it is to take: it
    has to be told the operator's network, without one the index. `fit`: all that would do.
    """

    index: int
    fit: tuple[int, ...] = ()
    ranged: bool = False


class FabricPort(msgspec.Struct, frozen=True, array_like=True):
    """A port of an HCA that the node's probe has chosen.

    `prefix` is the subnet's part of an InfiniBand port's GID. `netdev` is the interface that
    carries its addresses, with `mtu`. `table`: the whole GID table was read, so that a family
    without PortGids has none; `sparse`: it has holes. `near` are the GPUs, numbered in PCI order,
    that have no nearer one.
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
        """As NCCL and UCX write it: mlx5_0:1."""
        return f"{self.name}:{self.port}"


class MissingPort(msgspec.Struct, frozen=True, array_like=True):
    """A port of the class that jobs use, which cannot be used as it is, and `why`."""

    key: str
    pci: str
    why: str


class FabricGpu(msgspec.Struct, frozen=True, array_like=True):
    """A GPU in PCI order; `ways`, for each of the node's ports, say how far that is, as
    `muster.fabric.topology.way` has it."""

    pci: str
    uuid: str = ""
    ways: tuple[int, ...] = ()


class NodeFabric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's fresh probe, as far as the plan for its gang needs it; without ports and words there
    is nothing for RDMA.

    `ports` are those that jobs may use, in rail order (by PCI address), `missing` those that they
    would use, too, were they in order; `group` names the class. `unused` are those that NCCL would
    take without being told. `stops`: why RDMA cannot work on the node at all. `unseen`: why nothing
    is known of it. `range` is the network to which the operator has bound the addresses. `nccl` is
    the version found beside the jobs' interpreter, `nccl_conf` what NCCL reads from files there of
    what chooses its transport and its addresses. `versions` are of the kernel, the driver and OFED.
    `fingerprint` is a digest of the hardware and its cabling. `gpus` are there where the task has
    some of them. `unfit` are ports that NCCL uses by a plugin or never (EFA), each with the reason.
    `settings` are the operator's own for NCCL on this site; `ucx` is the version found.
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
    """What a node has for RDMA as its agent saw it last: by this nodes are chosen, while the plan
    for a gang rests on fresh probes.

    `group` names the class, of whose `expected` ports jobs can use `ports` now. Nodes of one `kind`
    agree in all that a plan compares. `why`: in words that follow the node's name, why there are no
    ports.
    """

    group: str = ""
    ports: int = 0
    expected: int = 0
    kind: str = ""
    why: str = ""


class TaskFabric(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task's node is told of the fabric plan.

    `hcas` are ports (mlx5_0:1) in rail order, the same number on all nodes of the gang; empty: the
    gang uses TCP. `netdevs` are the interfaces that carry them, and the sockets. `nccl_debug`:
    the user wants NCCL to say more.
    """

    rdma: Rdma = Rdma.PREFERRED
    hcas: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    nccl_debug: bool = False
