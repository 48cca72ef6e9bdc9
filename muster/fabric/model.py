"""Types of a node's probe. docs/reference/probe.md explains each field;
docs/reference/probe.schema.json is generated from these types.

None means unknown; `unknown` then has the reason by field name.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

VERSION: Final = 1
"""Version of the JSON. Added fields keep it, and fields never change their meaning."""

ETHERNET: Final = "Ethernet"
INFINIBAND: Final = "InfiniBand"
ACTIVE: Final = "ACTIVE"
UNLIMITED: Final = "unlimited"


class Severity(enum.Enum):
    """ERROR: RDMA does not work as it should. WARNING: it may fail or be slow. INFO: worth knowing,
    not a problem.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class AffinityClass(enum.Enum):
    """Distance between a GPU and an HCA, in the terms of `nvidia-smi topo`.

    PIX: at most one switch between them. PXB: several. PHB: through their host bridge. NODE:
    through another one of the same NUMA node. SYS: between NUMA nodes. UNKNOWN: not visible in the
    PCI tree.
    """

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    UNKNOWN = "UNKNOWN"


class Gid(msgspec.Struct, frozen=True):
    """A used entry of a port's GID table. `address` is its IP address, if any."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None
    address: str | None = None


class Counters(msgspec.Struct, frozen=True):
    """Counters of one port since its driver was loaded. The kernel counts data in units of four
    bytes.
    """

    xmit_bytes: int | None = None
    rcv_bytes: int | None = None
    link_downed: int | None = None
    symbol_error: int | None = None
    port_rcv_errors: int | None = None


class Hca(msgspec.Struct, frozen=True, kw_only=True, rename={"group": "class"}):
    """A port of an RDMA device: its properties, and the decision whether jobs use it.

    `group` (`class` in the JSON): ports of one class are similar. `expected`: a port of the compute
    class that cannot be used now. `gid_index`: the entry that NCCL uses with the given environment;
    None if none fits or the table is unknown. `usable_by_nccl_ib`: NCCL would take it without a
    list, like any active port. `members`: interfaces of its PCI function without its addresses,
    such as those below a bond; rules may name it by them. `gid_slots`: the length of the table, of
    which `gids_unread` entries were unreadable. `rail`: the position among the used ports, in PCI
    order. `physical_function`: of a virtual function. `uverbs_error`: why its device file, which is
    there, cannot be opened.
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
        """mlx5_0:1, in the notation of NCCL and UCX."""
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

    `hops`: bridges on the way between them, below the common one; None with UNKNOWN. The nearest
    HCA of a GPU has the best class, then the fewest hops.
    """

    gpu: str
    gpu_index: int
    hca: str
    distance: AffinityClass
    hops: int | None


class NetworkInterface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface. `addresses` have their prefix length if known. `running` is None if
    unknown.
    """

    name: str
    kind: str
    addresses: tuple[str, ...] = ()
    running: bool | None = None
    mtu: int | None = None
    speed_mbps: int | None = None
    hcas: tuple[str, ...] = ()
    pci: str | None = None


class FabricProblem(msgspec.Struct, frozen=True):
    """A problem with its effect (`what`), and the remedy (`fix`). `stops`: no job can use RDMA on
    this node at all.
    """

    severity: Severity
    what: str
    fix: str
    stops: bool = False


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The compute class: `used` of its `expected` ports. `alternatives`: other possible classes.
    `unread`: why the RDMA devices are unknown, else "".
    """

    name: str | None = None
    used: int = 0
    expected: int = 0
    alternatives: tuple[str, ...] = ()
    unread: str = ""


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a job's processes. `source` names their origin.

    `memlock` and `nofile` are numbers (bytes, files) or "unlimited"; None is unknown.
    """

    source: str = ""
    memlock: int | str | None = None
    nofile: int | str | None = None
    shm_bytes: int | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Versions, and paths of libraries: None if missing, no entry if unknown.

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
    """A node. `env` is the environment for its jobs. `fingerprint` is a digest of everything that
    changes only with the hardware and its cabling.
    """

    version: int = VERSION
    hostname: str
    hcas: tuple[Hca, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    networks: tuple[NetworkInterface, ...] = ()
    env: dict[str, str] = {}
    problems: tuple[FabricProblem, ...] = ()
    fabric: Fabric = Fabric()
    limits: ProcessLimits = ProcessLimits()
    software: Software = Software()
    fingerprint: str = ""
