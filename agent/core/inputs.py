"""What may happen to an agent: the inputs of `decide`."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.core.effects import Timer
from agent.core.shim_protocol import ShimStatus
from muster.protocol.control_channel import Command, Refusal, StacksReport
from muster.protocol.disks import DiskHealth
from muster.protocol.fabric import NodeFabric, NodeRdma
from muster.protocol.gpus import GpuDevice
from muster.protocol.hangs import RankActivity
from muster.protocol.hardware_events import HardwareEvent
from muster.protocol.ids import TaskId
from muster.protocol.interfaces import Interface
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.traffic import FabricReport, PortHealth

NO_FABRIC: Final = NodeFabric()
"""Of a node without RDMA devices."""


class LinkUp(msgspec.Struct, frozen=True):
    """A connection to the coordinator is open; nothing has been said on it."""


class LinkDown(msgspec.Struct, frozen=True):
    """The connection is gone, or its peer has said something that cannot be understood."""


class CommandReceived(msgspec.Struct, frozen=True):
    command: Command


class ShimReported(msgspec.Struct, frozen=True):
    """The status of a task's shim; of a shim that has gone, its exit record. `no_output`: the task
    has ended, and none of its logs has a byte."""

    task: TaskId
    status: ShimStatus
    no_output: bool = False


class TaskPaths(msgspec.Struct, frozen=True):
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


class TaskFound(msgspec.Struct, frozen=True):
    """At the agent's start: an earlier life left this task, and this is its shim's status or
    record, with the paths, ports and GPUs of its manifest, and the node's fabric as it is now."""

    task: TaskId
    status: ShimStatus
    paths: TaskPaths
    ports: tuple[int, ...] = ()
    fabric: NodeFabric = NO_FABRIC
    gpus: tuple[str, ...] = ()


class ShimFailed(msgspec.Struct, frozen=True):
    """No shim could be made for the task; `text` says why."""

    task: TaskId
    text: str
    code: str = RefusalCode.SPAWN_FAILED


class TaskPlaced(msgspec.Struct, frozen=True):
    """The folders of the task exist, and these ports were free.

    `interfaces` are the node's as they are now; None where they were not looked at. `fabric` is
    None where FabricSeen is to follow.
    """

    task: TaskId
    paths: TaskPaths
    ports: tuple[int, ...]
    interfaces: tuple[Interface, ...] | None = None
    fabric: NodeFabric | None = NO_FABRIC


class FabricObserved(msgspec.Struct, frozen=True):
    """The node's fabric has been probed for the task."""

    task: TaskId
    fabric: NodeFabric


class RdmaObserved(msgspec.Struct, frozen=True):
    """What the node has for RDMA, whoever asked; None where it is not known."""

    rdma: NodeRdma | None


class TrafficObserved(msgspec.Struct, frozen=True):
    """What is known of the task's traffic; it has changed enough to be told."""

    task: TaskId
    report: FabricReport


class PeersObserved(msgspec.Struct, frozen=True):
    """The addresses of the gang's neighbours that answered once, and do not any more."""

    task: TaskId
    silent: tuple[str, ...]


class CheckpointObserved(msgspec.Struct, frozen=True):
    """Something new has settled in the folder of the checkpoints of the task's job; `name` is the
    newest file that has."""

    task: TaskId
    name: str


class ActivityObserved(msgspec.Struct, frozen=True):
    """Whether the task's ranks move, at `at` in monotonic seconds; it has changed."""

    task: TaskId
    ranks: tuple[RankActivity, ...]
    at: float


class IdleObserved(msgspec.Struct, frozen=True):
    """Since when the task's GPUs have been idle, for long enough to be told, in monotonic seconds;
    None: they are not, or nobody knows."""

    task: TaskId
    since: float | None


class StacksObserved(msgspec.Struct, frozen=True):
    """The answer to TakeStacks."""

    report: StacksReport


class NetworkObserved(msgspec.Struct, frozen=True):
    """The node's interfaces, read again because something of them has changed."""

    interfaces: tuple[Interface, ...]


class PortsObserved(msgspec.Struct, frozen=True):
    """The RDMA ports that are not as they should be."""

    ports: tuple[PortHealth, ...]


class GpusObserved(msgspec.Struct, frozen=True):
    """The node's GPUs, looked at again."""

    devices: tuple[GpuDevice, ...]


class DisksObserved(msgspec.Struct, frozen=True):
    """The disks that are full, or nearly so, or hang."""

    disks: tuple[DiskHealth, ...]


class HardwareObserved(msgspec.Struct, frozen=True):
    """Something has happened to the node's hardware; where that is no `news`, an earlier life of
    the agent has seen it."""

    event: HardwareEvent
    news: bool = True


class NetworkArranged(msgspec.Struct, frozen=True):
    """The task's peers can be reached by name; `warnings` are sentences for a person."""

    task: TaskId
    warnings: tuple[str, ...] = ()


class NetworkRefused(msgspec.Struct, frozen=True):
    """They cannot."""

    task: TaskId
    refusal: Refusal


class PlanRefused(msgspec.Struct, frozen=True):
    """What the plan wants of this node, beside its network, cannot be had: its host file cannot be
    written. The task's shim is told to end."""

    task: TaskId
    refusal: Refusal


class NetworkRestored(msgspec.Struct, frozen=True):
    """Nothing of the task is left in this node's network."""

    task: TaskId


class LogsStored(msgspec.Struct, frozen=True):
    """The coordinator has every log byte of the task on disk."""

    task: TaskId


class TaskRemoved(msgspec.Struct, frozen=True):
    """The task's folder is gone."""

    task: TaskId


class TimerFired(msgspec.Struct, frozen=True):
    timer: Timer


Input = (
    LinkUp
    | LinkDown
    | CommandReceived
    | ShimReported
    | TaskFound
    | ShimFailed
    | TaskPlaced
    | FabricObserved
    | TrafficObserved
    | PeersObserved
    | CheckpointObserved
    | ActivityObserved
    | IdleObserved
    | StacksObserved
    | NetworkObserved
    | PortsObserved
    | GpusObserved
    | HardwareObserved
    | DisksObserved
    | RdmaObserved
    | NetworkArranged
    | NetworkRefused
    | PlanRefused
    | NetworkRestored
    | LogsStored
    | TaskRemoved
    | TimerFired
)
