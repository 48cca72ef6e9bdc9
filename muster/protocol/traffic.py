"""What a node says of the traffic of a task: counters of its ports, and what NCCL's lines say.

A report is cumulative, as a task's is. None is "unknown", never 0.
"""

from __future__ import annotations

import enum

import msgspec


class Carrier(enum.Enum):
    """What carried a gang's traffic between its nodes. PROVED: RDMA, on evidence."""

    PROVED = "proved"
    TCP = "tcp"
    UNKNOWN = "unknown"


class NcclEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NCCL's INFO lines say, of one process or of all of a node.

    `network` is that of the last communicator, `plugin` the last that was initialized. `over_rdma`
    and `over_tcp` count channels to other nodes, `gdr` those of them that reach GPU memory without
    a copy, `over_nvlink` those of NVLink between nodes. `sockets`: processes whose last
    communicator has sockets or that have a channel over them, out of `processes` with lines.
    `devices` are those of NCCL's own list (`mlx5_0:1`), `reason` is why there is none; `trouble`
    are warnings, the first ones.
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
    """One RDMA port while a task ran: bytes since its start, rates in bytes a second.

    `planned`: the task is to use it. `peak` is that of the busier direction. What an IPoIB
    interface of it carried is not in them: that is TCP. `flaps`: how often its link went down.
    `errors` are counters of faults that moved, by the kernel's names. `why`: no bytes are known.
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
        """In both directions, as far as they are known."""
        return (self.sent or 0) + (self.received or 0)


class SocketFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network interface while a task ran; all that went over it, whoever sent it."""

    name: str
    sent: int | None = None
    received: int | None = None
    peak: float = 0.0

    @property
    def bytes(self) -> int:
        """In both directions, as far as they are known."""
        return (self.sent or 0) + (self.received or 0)


class FabricReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a node knows of a task's traffic.

    `seconds` since the task's start, in `samples`; `gaps` and `gap_s`: how often, and for how long,
    nobody looked (the totals have what went meanwhile, the peaks do not). `peak` is that of all
    planned ports together. `shared`: other tasks ran on the node, and their traffic is counted,
    too. `unheard`: why NCCL's lines are not to be had, "" where they are.
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
    """An RDMA port that is not as it was, or as one of the compute class should be: `down`, in
    which `state` (`DOWN, Polling`), or up again after `flaps`."""

    port: str
    down: bool = False
    state: str = ""
    flaps: int = 0

    @property
    def text(self) -> str:
        """What a person is told."""
        times = f"{self.flaps} time{'' if self.flaps == 1 else 's'}"
        if self.down:
            lost = f", after its link went down {times}" if self.flaps > 1 else ""
            return f"port {self.port} is down ({self.state}){lost}: check its cable and its switch"
        return f"the link of port {self.port} went down {times} within the hour and is up again"


class NodeProof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's part of a proof. `said` is what NCCL's lines say, in words; `imbalance` how much
    less than the mean the least busy HCA carried, `tcp_share` the part of the node's bytes that
    went by TCP, both from 0 to 1."""

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
    """What carried the traffic of an attempt: the verdict, and the line that says it."""

    verdict: Carrier
    text: str


class JobProof(ProofView, frozen=True, kw_only=True):
    """The verdict on the job's last attempt, with the figures of each node that has said any."""

    nodes: tuple[NodeProof, ...]
