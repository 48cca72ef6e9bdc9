"""What may happen to an agent: the inputs of `decide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.core.actions import Timer
from agent.core.shim import ShimStatus
from muster.protocol.disks import DiskHealth
from muster.protocol.fabric import NodeFabric, NodeRdma
from muster.protocol.gpus import GpuDevice
from muster.protocol.hangs import RankActivity
from muster.protocol.hardware import HardwareEvent
from muster.protocol.ids import TaskId
from muster.protocol.interfaces import Interface
from muster.protocol.messages import Command, Refusal, StacksReport
from muster.protocol.proof import FabricReport, PortHealth

NO_FABRIC: Final = NodeFabric()
"""Of a node without RDMA devices."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to the coordinator is open; nothing has been said on it."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection is gone, or its peer has said something that cannot be understood."""


@dataclass(frozen=True, slots=True)
class CommandReceived:
    command: Command


@dataclass(frozen=True, slots=True)
class ShimReported:
    """The status of a task's shim; of a shim that has gone, its exit record."""

    task: TaskId
    status: ShimStatus


@dataclass(frozen=True, slots=True)
class TaskPaths:
    """Absolute paths of a task's folders on this node, made before its shim starts.

    `workdir` is where the program runs. `hosts` is the hosts file that the job alone sees, in the
    place of `hosts_of`; "" where it has the machine's. `nccl` is where NCCL may write its lines.
    """

    workdir: str
    scratch: str
    output: str
    hostfile: str
    hosts: str = ""
    hosts_of: str = ""
    nccl: str = ""


@dataclass(frozen=True, slots=True)
class TaskFound:
    """At the agent's start: an earlier life left this task, and this is its shim's status or
    record, with the paths, ports and GPUs of its manifest, and the node's fabric as it is now."""

    task: TaskId
    status: ShimStatus
    paths: TaskPaths
    ports: tuple[int, ...] = ()
    fabric: NodeFabric = NO_FABRIC
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShimFailed:
    """No shim could be made for the task; `text` says why, in a class of NODE_FAULTS."""

    task: TaskId
    text: str
    code: str = "spawn_failed"


@dataclass(frozen=True, slots=True)
class TaskPlaced:
    """The folders of the task exist, and these ports were free.

    `interfaces` are the node's as they are now; None where they were not looked at. `fabric` is
    None where FabricSeen is to follow.
    """

    task: TaskId
    paths: TaskPaths
    ports: tuple[int, ...]
    interfaces: tuple[Interface, ...] | None = None
    fabric: NodeFabric | None = NO_FABRIC


@dataclass(frozen=True, slots=True)
class FabricSeen:
    """The node's fabric has been probed for the task."""

    task: TaskId
    fabric: NodeFabric


@dataclass(frozen=True, slots=True)
class RdmaSeen:
    """What the node has for RDMA, whoever asked; None where it is not known."""

    rdma: NodeRdma | None


@dataclass(frozen=True, slots=True)
class TrafficSeen:
    """What is known of the task's traffic; it has changed enough to be told."""

    task: TaskId
    report: FabricReport


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """The addresses of the gang's neighbours that answered once, and do not any more."""

    task: TaskId
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """Something new has settled in the folder of the checkpoints of the task's job; `name` is the
    newest file there."""

    task: TaskId
    name: str


@dataclass(frozen=True, slots=True)
class ActivitySeen:
    """Whether the task's ranks move, at `at` in monotonic seconds; it has changed."""

    task: TaskId
    ranks: tuple[RankActivity, ...]
    at: float


@dataclass(frozen=True, slots=True)
class IdleSeen:
    """Since when the task's GPUs have been idle, for long enough to be told, in monotonic seconds;
    None: they are not, or nobody knows."""

    task: TaskId
    since: float | None


@dataclass(frozen=True, slots=True)
class StacksSeen:
    """The answer to TakeStacks."""

    report: StacksReport


@dataclass(frozen=True, slots=True)
class NetworkSeen:
    """The node's interfaces, read again because something of them has changed."""

    interfaces: tuple[Interface, ...]


@dataclass(frozen=True, slots=True)
class PortsSeen:
    """The RDMA ports that are not as they should be."""

    ports: tuple[PortHealth, ...]


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """The node's GPUs, looked at again."""

    devices: tuple[GpuDevice, ...]


@dataclass(frozen=True, slots=True)
class DisksSeen:
    """The disks that are full, or nearly so, or hang."""

    disks: tuple[DiskHealth, ...]


@dataclass(frozen=True, slots=True)
class HardwareSeen:
    """Something has happened to the node's hardware; where that is no `news`, an earlier life of
    the agent has seen it."""

    event: HardwareEvent
    news: bool = True


@dataclass(frozen=True, slots=True)
class NetworkArranged:
    """The task's peers can be reached by name; `warnings` are sentences for a person."""

    task: TaskId
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkRefused:
    """They cannot."""

    task: TaskId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """What the plan wants of this node, beside its network, cannot be had: its host file cannot be
    written. The task's shim is told to end."""

    task: TaskId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NetworkRestored:
    """Nothing of the task is left in this node's network."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class LogsStored:
    """The coordinator has every log byte of the task on disk."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskRemoved:
    """The task's folder is gone."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


Stimulus = (
    LinkUp
    | LinkDown
    | CommandReceived
    | ShimReported
    | TaskFound
    | ShimFailed
    | TaskPlaced
    | FabricSeen
    | TrafficSeen
    | PeersSeen
    | CheckpointSeen
    | ActivitySeen
    | IdleSeen
    | StacksSeen
    | NetworkSeen
    | PortsSeen
    | GpusSeen
    | HardwareSeen
    | DisksSeen
    | RdmaSeen
    | NetworkArranged
    | NetworkRefused
    | PlanRefused
    | NetworkRestored
    | LogsStored
    | TaskRemoved
    | TimerFired
)
