"""The report of a probe of one node. docs/reference/probe.md explains each field,
docs/reference/probe.schema.json is made
of these types.

None is "unknown"; `unknown` then says why, by the name of the field.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

VERSION: Final = 1
"""Of the JSON: fields are added without another number, and never change their meaning."""

ETHERNET: Final = "Ethernet"
INFINIBAND: Final = "InfiniBand"
ACTIVE: Final = "ACTIVE"
UNLIMITED: Final = "unlimited"


class Severity(enum.Enum):
    """ERROR: RDMA does not work as it should. WARNING: it may fail or be slow. INFO: worth knowing,
    no problem."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class AffinityClass(enum.Enum):
    """How far a GPU and an HCA are apart, in the words of `nvidia-smi topo`.

    PIX: at most one switch between them. PXB: several. PHB: through their host bridge.
    NODE: through another one of the same NUMA node. SYS: between NUMA nodes. UNKNOWN: the PCI tree
    does not tell.
    """

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    UNKNOWN = "UNKNOWN"


class Gid(msgspec.Struct, frozen=True):
    """A used entry of a port's GID table. `address`: the IP address that it stands for, if any."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None
    address: str | None = None


class Counters(msgspec.Struct, frozen=True):
    """Of one port since its driver was loaded. The kernel counts data in units of four bytes."""

    xmit_bytes: int | None = None
    rcv_bytes: int | None = None
    link_downed: int | None = None
    symbol_error: int | None = None
    port_rcv_errors: int | None = None


class Hca(msgspec.Struct, frozen=True, kw_only=True, rename={"group": "class"}):
    """One port of an RDMA device: what was read of it, and whether jobs are to use it.

    `group` (`class` in the JSON): ports of one class are like each other. `expected`: one of the
    class that is used, which cannot be used as it is. `gid_index`: the entry that NCCL uses under
    the environment given; None where none is fit or the table is unknown. `usable_by_nccl_ib`:
    NCCL would take it without a list, as any active port. `members`: interfaces of its PCI function
    that do not carry its addresses, as those below a bond, by which rules may name it. `gid_slots`:
    the length of the table, of which `gids_unread` could not be read. `rail`: the place among those
    used, in PCI order. `physical_function`: of a virtual function. `uverbs_error`: why its device
    file, which is there, cannot be opened.
    """

    name: str
    port: int
    pci: str | None = None
    numa_node: int | None = None
    hca_type: str | None = None
    fw_ver: str | None = None
    link_layer: str | None = None
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    netdevs: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    gid_index: int | None = None
    use: bool = False
    reason: str = ""
    group: str = ""
    expected: bool = False
    rail: int | None = None
    usable_by_nccl_ib: bool | None = None
    node_type: int | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    board_id: str | None = None
    driver: str | None = None
    pci_id: str | None = None
    pci_class: int | None = None
    pci_path: tuple[str, ...] = ()
    virtual: bool = False
    physical_function: str | None = None
    rate: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    gid_slots: int | None = None
    gids_unread: int = 0
    uverbs: str | None = None
    uverbs_error: str | None = None
    counters: Counters = Counters()
    unknown: dict[str, str] = {}

    @property
    def key(self) -> str:
        """As NCCL and UCX write it: mlx5_0:1."""
        return f"{self.name}:{self.port}"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or another accelerator, numbered in PCI order; `pci_id` is vendor:device."""

    index: int
    pci: str
    numa_node: int | None = None
    pci_id: str = ""
    name: str | None = None
    uuid: str | None = None
    pci_path: tuple[str, ...] = ()


class Affinity(msgspec.Struct, frozen=True, kw_only=True, rename={"distance": "class"}):
    """A GPU and an HCA, by name (a PCI address where no RDMA device serves the function).

    `hops`: bridges on the way between them, below the common one; None with UNKNOWN. Of one GPU's
    HCAs the nearest has the best class, then the fewest hops.
    """

    gpu: str
    gpu_index: int
    hca: str
    distance: AffinityClass
    hops: int | None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface. `addresses` have their prefix length where it is known. `running` is
    None where nothing says so."""

    name: str
    kind: str
    addresses: tuple[str, ...] = ()
    running: bool | None = None
    mtu: int | None = None
    speed_mbps: int | None = None
    hcas: tuple[str, ...] = ()
    pci: str | None = None


class Problem(msgspec.Struct, frozen=True):
    """What is found and what it costs (`what`), and how to mend it (`fix`). `stops`: with it no job
    can use RDMA on this node at all."""

    severity: Severity
    what: str
    fix: str
    stops: bool = False


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The class that is used: of its `expected` ports `used`. `alternatives`: other classes that
    could be. `unread`: why it is not known which RDMA devices there are, "" where it is."""

    name: str | None = None
    used: int = 0
    expected: int = 0
    alternatives: tuple[str, ...] = ()
    unread: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's processes may have. `source` says whose limits these are.

    `memlock` and `nofile` are numbers (bytes, files) or "unlimited"; None is unknown.
    """

    source: str = ""
    memlock: int | str | None = None
    nofile: int | str | None = None
    shm_bytes: int | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Versions, and where libraries are found: None if they are not, no entry if that is unknown.

    `gpudirect`: how the NIC reaches GPU memory, "peermem", "dmabuf" or "none"; None is unknown.
    """

    kernel: str | None = None
    os: str | None = None
    nvidia_driver: str | None = None
    ofed: str | None = None
    modules: dict[str, str] = {}
    libraries: dict[str, str | None] = {}
    gpudirect: str | None = None
    nccl: str | None = None
    nccl_source: str = ""
    nccl_conf: dict[str, str] = {}
    ucx: str | None = None


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `env`: what its jobs should have in their environment. `fingerprint`: a digest of
    what does not change while the hardware and its cabling stay."""

    version: int = VERSION
    hostname: str
    hcas: tuple[Hca, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    networks: tuple[Network, ...] = ()
    env: dict[str, str] = {}
    problems: tuple[Problem, ...] = ()
    fabric: Fabric = Fabric()
    limits: Limits = Limits()
    software: Software = Software()
    fingerprint: str = ""
