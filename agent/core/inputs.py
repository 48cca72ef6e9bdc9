"""Inputs: the events that the agent's core decides on."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from agent.core.effects import Timer
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimStatus, ShimUser
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Command, NodeChanges, Refusal, StacksReport
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.hangs import RankActivity
from muster.protocol.observations.interfaces import Interface
from muster.protocol.observations.traffic import FabricReport
from muster.protocol.refusal_codes import RefusalCode

NO_FABRIC: Final = NodeFabric()
"""The fabric of a node without RDMA devices."""


class LinkUp(msgspec.Struct, frozen=True):
    """A connection to the coordinator is open; nothing has been sent on it yet."""


class LinkDown(msgspec.Struct, frozen=True):
    """The connection is lost, or the peer has sent something that cannot be decoded."""


class CommandReceived(msgspec.Struct, frozen=True):
    command: Command


class ShimReported(msgspec.Struct, frozen=True):
    """The status of a task's shim; if the shim has exited, its exit record. `no_output`: the task
    has ended and all its logs are empty."""

    task: TaskId
    status: ShimStatus
    no_output: bool = False


class TaskPaths(msgspec.Struct, frozen=True):
    """Absolute paths of a task's directories on this node, created before its shim starts.

    The program runs in `workdir`. `hosts` is the job's private hosts file, mounted over `hosts_of`;
    "" if the job uses the machine's. NCCL may write its log lines below `nccl`. `tmp` is the job's
    own /tmp; "" if it has the machine's.
    """

    workdir: str
    scratch: str
    output: str
    hostfile: str
    hosts: str = ""
    hosts_of: str = ""
    nccl: str = ""
    tmp: str = ""


class TaskFound(msgspec.Struct, frozen=True):
    """A task that an earlier agent process left, found at the agent's start: the shim's status or
    exit record; paths, ports, GPUs, lease and record from the manifest; and the node's current
    fabric."""

    task: TaskId
    status: ShimStatus
    paths: TaskPaths
    ports: tuple[int, ...] = ()
    fabric: NodeFabric = NO_FABRIC
    gpus: tuple[str, ...] = ()
    lease_s: float | None = None
    record: TaskRecord | None = None


class RecordStored(msgspec.Struct, frozen=True):
    """The record of the task is on disk."""

    task: TaskId
    record: TaskRecord


class VouchReceived(msgspec.Struct, frozen=True):
    """The agent of another member of the task's gang vouches for the task, in answer to the round
    of that name."""

    task: TaskId
    member: TaskId
    nonce: str


class ShimFailed(msgspec.Struct, frozen=True):
    """No shim could be started for the task; `text` gives the reason."""

    task: TaskId
    text: str
    code: str = RefusalCode.SPAWN_FAILED


class TaskPlaced(msgspec.Struct, frozen=True):
    """The directories of the task exist, and these ports were free.

    `interfaces` are the node's current ones; None if they were not read. `fabric` is None if
    an observation of it follows. The job runs as `user`, None for the agent's own. `prolog` is the
    last line that the site's prolog wrote.
    """

    task: TaskId
    paths: TaskPaths
    ports: tuple[int, ...]
    interfaces: tuple[Interface, ...] | None = None
    fabric: NodeFabric | None = NO_FABRIC
    user: ShimUser | None = None
    prolog: str = ""


class TaskChanges(msgspec.Struct, frozen=True):
    """New observations of a task. None is unchanged.

    `fabric` is the node's, probed for the task. `traffic` has changed enough to be reported.
    `silent` are addresses of the gang's neighbours that answered once and have stopped answering.
    `checkpoint` is the newest file in the job's checkpoint directory, once something new has
    settled there. `activity` is that of the ranks at `activity_at` (monotonic seconds).
    `idle_since` is the monotonic time since when the task's GPUs have been idle, once that is long
    enough to report, or None: they are not idle, or it is unknown.
    """

    fabric: NodeFabric | None = None
    traffic: FabricReport | None = None
    silent: tuple[str, ...] | None = None
    checkpoint: str | None = None
    activity: tuple[RankActivity, ...] | None = None
    activity_at: float = 0.0
    idle_since: float | UnsetType | None = UNSET


class TaskObserved(msgspec.Struct, frozen=True):
    """A monitor has something new about the task."""

    task: TaskId
    changes: TaskChanges


class StacksObserved(msgspec.Struct, frozen=True):
    """The answer to TakeStacks."""

    report: StacksReport


class NodeObserved(msgspec.Struct, frozen=True):
    """Observations of the node. They may be as before."""

    changes: NodeChanges


class NetworkArranged(msgspec.Struct, frozen=True):
    """The task's peers can be reached by name; `warnings` are sentences for a person."""

    task: TaskId
    warnings: tuple[str, ...] = ()


class NetworkRefused(msgspec.Struct, frozen=True):
    """The task's peers cannot be reached by name."""

    task: TaskId
    refusal: Refusal


class NetworkRestored(msgspec.Struct, frozen=True):
    """Nothing of the task is left in this node's network configuration."""

    task: TaskId


class LogsStored(msgspec.Struct, frozen=True):
    """The coordinator has every log byte of the task on disk."""

    task: TaskId


class EpilogRan(msgspec.Struct, frozen=True):
    """The last line that the site's epilog wrote for the task, or how it failed."""

    task: TaskId
    line: str


class TaskRemoved(msgspec.Struct, frozen=True):
    """The task's directory is removed."""

    task: TaskId


class TimerFired(msgspec.Struct, frozen=True):
    timer: Timer


Input = (
    LinkUp
    | LinkDown
    | CommandReceived
    | ShimReported
    | TaskFound
    | RecordStored
    | VouchReceived
    | ShimFailed
    | TaskPlaced
    | TaskObserved
    | StacksObserved
    | NodeObserved
    | NetworkArranged
    | NetworkRefused
    | NetworkRestored
    | LogsStored
    | EpilogRan
    | TaskRemoved
    | TimerFired
)
