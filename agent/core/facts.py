"""What has changed at an agent: the only things that change its state.

None of them is journaled: what has to outlive the agent is on disk with each task's shim, and an
agent that starts learns it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.shim import ShimStatus
from agent.core.stimuli import TaskPaths
from muster.protocol.disks import DiskHealth
from muster.protocol.fabric import NodeFabric, NodeRdma
from muster.protocol.gpus import GpuDevice
from muster.protocol.hangs import RankActivity
from muster.protocol.hardware import HardwareEvent
from muster.protocol.ids import TaskId
from muster.protocol.interfaces import Interface
from muster.protocol.messages import ArrangeTask, PrepareTask, Refusal, StopTask
from muster.protocol.proof import FabricReport, PortHealth


@dataclass(frozen=True, slots=True)
class LinkOpened:
    at: float


@dataclass(frozen=True, slots=True)
class LinkClosed:
    pass


@dataclass(frozen=True, slots=True)
class Welcomed:
    epoch: int
    cluster: str
    lease_s: float
    heartbeat_s: float
    leases: Mapping[TaskId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heard:
    at: float


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    until: float


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    interfaces: tuple[Interface, ...]


@dataclass(frozen=True, slots=True)
class PortsChanged:
    ports: tuple[PortHealth, ...]


@dataclass(frozen=True, slots=True)
class RdmaChanged:
    """What the node has for RDMA is not what it had."""

    rdma: NodeRdma | None


@dataclass(frozen=True, slots=True)
class GpusChanged:
    devices: tuple[GpuDevice, ...]


@dataclass(frozen=True, slots=True)
class PeersKnown:
    task: TaskId
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DisksChanged:
    disks: tuple[DiskHealth, ...]


@dataclass(frozen=True, slots=True)
class HardwareKnown:
    event: HardwareEvent


@dataclass(frozen=True, slots=True)
class TaskAccepted:
    task: TaskId
    prepare: PrepareTask


@dataclass(frozen=True, slots=True)
class TaskAdopted:
    """Of an earlier life of the agent."""

    task: TaskId
    status: ShimStatus
    paths: TaskPaths
    ports: tuple[int, ...]
    at: float
    fabric: NodeFabric
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskHoused:
    task: TaskId
    paths: TaskPaths
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FabricKnown:
    task: TaskId
    fabric: NodeFabric


@dataclass(frozen=True, slots=True)
class TrafficKnown:
    task: TaskId
    report: FabricReport


@dataclass(frozen=True, slots=True)
class CheckpointKnown:
    task: TaskId
    name: str
    at: float


@dataclass(frozen=True, slots=True)
class ActivityKnown:
    task: TaskId
    ranks: tuple[RankActivity, ...]
    at: float


@dataclass(frozen=True, slots=True)
class IdleKnown:
    task: TaskId
    since: float | None


@dataclass(frozen=True, slots=True)
class ShimSeen:
    task: TaskId
    status: ShimStatus
    at: float


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """It never had a shim, and nothing of it runs."""

    task: TaskId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PlanTaken:
    task: TaskId
    arrange: ArrangeTask


@dataclass(frozen=True, slots=True)
class NetworkReady:
    task: TaskId
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkDenied:
    task: TaskId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PlanDenied:
    task: TaskId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NetworkFreed:
    task: TaskId


@dataclass(frozen=True, slots=True)
class GateOpened:
    """The coordinator has said so; where the network is still being arranged, it opens then."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class StopTaken:
    task: TaskId
    stop: StopTask


@dataclass(frozen=True, slots=True)
class Buried:
    """The task was stopped before it was ever seen: it is never to be prepared."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Forgotten:
    task: TaskId


@dataclass(frozen=True, slots=True)
class LogsKept:
    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskGone:
    task: TaskId


LinkFact = LinkOpened | LinkClosed | Welcomed | Heard | LeaseGranted
NodeFact = NetworkChanged | GpusChanged | PortsChanged | RdmaChanged | HardwareKnown | DisksChanged
TaskFact = (
    TaskAccepted
    | TaskAdopted
    | TaskHoused
    | FabricKnown
    | TrafficKnown
    | PeersKnown
    | CheckpointKnown
    | ActivityKnown
    | IdleKnown
    | ShimSeen
    | TaskFailed
    | PlanTaken
    | NetworkReady
    | NetworkDenied
    | PlanDenied
    | NetworkFreed
    | GateOpened
    | StopTaken
    | Buried
    | Forgotten
    | LogsKept
    | TaskGone
)
Fact = LinkFact | NodeFact | TaskFact
