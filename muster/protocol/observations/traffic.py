"""Report of a node about a task's traffic: port counters, and evidence from NCCL's log.

A report is cumulative, like that of a task. Unknown is None, never 0.
"""

from __future__ import annotations

import enum

import msgspec


class Carrier(enum.Enum):
    """Carrier of a gang's traffic between its nodes. PROVED: RDMA, on evidence."""

    PROVED = "proved"
    TCP = "tcp"
    UNKNOWN = "unknown"


class NcclEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Evidence from NCCL's INFO lines, of one process or of all processes of a node.

    `network` is that of the last communicator, `plugin` the last that was initialized. `over_rdma`
    and `over_tcp` count channels to other nodes, `gdr` those that reach GPU memory without a copy,
    `over_nvlink` those over NVLink between nodes. `sockets` counts processes whose last
    communicator uses sockets or that have a channel over them, out of `processes` with lines.
    `devices` are those of NCCL's own list (`mlx5_0:1`); `reason` is why there is none; `trouble`
    are the first warnings.
    """

    processes: int = 0
    decided: int = 0
    sockets: int = 0
    version: str = ""
    network: str = ""
    plugin: str = ""
    over_rdma: int = 0
    over_tcp: int = 0
    over_nvlink: int = 0
    gdr: int = 0
    devices: tuple[str, ...] = ()
    reason: str = ""
    trouble: tuple[str, ...] = ()


class PortFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Traffic of an RDMA port during a task: bytes since its start, rates in bytes per second.

    `planned`: the plan assigns it to the task. `peak` is that of the busier direction. Bytes of an
    IPoIB interface are not included, because they are TCP. `flaps`: how often its link went down.
    `errors` are fault counters that increased, by the kernel's names. `why`: the reason if the
    bytes are unknown.
    """

    port: str
    planned: bool = False
    sent: int | None = None
    received: int | None = None
    rate: float = 0.0
    peak: float = 0.0
    flaps: int | None = None
    errors: dict[str, int] = {}
    why: str = ""

    @property
    def bytes(self) -> int:
        """Bytes in both directions, as far as known."""
        return (self.sent or 0) + (self.received or 0)


class SocketFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Traffic of a network interface during a task, from all senders."""

    name: str
    sent: int | None = None
    received: int | None = None
    peak: float = 0.0

    @property
    def bytes(self) -> int:
        """Bytes in both directions, as far as known."""
        return (self.sent or 0) + (self.received or 0)


class FabricReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a node knows of a task's traffic.

    `seconds` since the task's start, in `samples`. `gaps` and `gap_s`: the number and total length
    of pauses without samples (the totals include this traffic, the peaks do not). `peak` is that of
    all planned ports together. `shared`: other tasks ran on the node, and their traffic is
    included. `unheard`: why NCCL's lines are unavailable, else "".
    """

    seconds: float = 0.0
    samples: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    ports: tuple[PortFigures, ...] = ()
    sockets: tuple[SocketFigures, ...] = ()
    peak: float = 0.0
    nccl: NcclEvidence = NcclEvidence()
    shared: bool = False
    unheard: str = ""


class PortHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """An abnormal RDMA port: one that is `down`, with its `state` (`DOWN, Polling`), or up again
    after `flaps`.
    """

    port: str
    down: bool = False
    state: str = ""
    flaps: int = 0

    @property
    def text(self) -> str:
        """Return the message for users."""
        times = f"{self.flaps} time{'' if self.flaps == 1 else 's'}"
        if self.down:
            lost = f", after its link went down {times}" if self.flaps > 1 else ""
            return f"port {self.port} is down ({self.state}){lost}: check its cable and its switch"
        return f"the link of port {self.port} went down {times} within the hour and is up again"


class NodeProof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's part of the evidence. `said` describes NCCL's lines. `imbalance` is by how much the
    least busy HCA is below the mean, `tcp_share` the TCP share of the node's bytes, both from 0 to
    1.
    """

    node: str
    node_rank: int
    said: str
    seconds: float = 0.0
    samples: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    peak: float = 0.0
    imbalance: float | None = None
    tcp_share: float | None = None
    shared: bool = False
    ports: tuple[PortFigures, ...] = ()
    sockets: tuple[SocketFigures, ...] = ()
    nccl: NcclEvidence = NcclEvidence()


class ProofView(msgspec.Struct, frozen=True):
    """Verdict on the traffic of an attempt, and its message."""

    verdict: Carrier
    text: str


class JobProof(ProofView, frozen=True, kw_only=True):
    """The verdict on the job's last attempt, with the figures of each reporting node."""

    nodes: tuple[NodeProof, ...]
