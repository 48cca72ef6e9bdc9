"""Facts about the agents' connections. They belong to this process and are never journaled."""

from __future__ import annotations

import msgspec

from muster.protocol.control_channel import Inventory
from muster.protocol.disks import DiskHealth
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from muster.protocol.traffic import PortHealth


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class NodeConnected(_Fact, frozen=True):
    """`lease_until` and `heard_at` are monotonic seconds of this process.

    `ahead_s` is how far the agent's wall clock is ahead of ours, 0 if that is little or unknown.
    `instance` identifies the agent's process.
    """

    node: NodeName
    session: SessionId
    peer: str
    heard_at: float
    lease_until: float
    protocol: int = 1
    ahead_s: float = 0.0
    instance: str = ""


class DuplicateNameSeen(_Fact, frozen=True):
    """An agent at `peer` was refused, because another agent has its name.

    `at` is in monotonic seconds of this process.
    """

    node: NodeName
    peer: str
    at: float


class NodeDescribed(_Fact, frozen=True):
    """A known node's current description, as its agent reports it.

    `unrecorded`: the journal does not have all of it that lasts, because NodeRegistered is
    rate-limited. `recorded_at`: the journal has it, since that time (monotonic seconds of this
    process). `new`: the node's name is new.
    """

    node: NodeName
    version: str
    inventory: Inventory
    unrecorded: bool = False
    recorded_at: float | None = None
    new: bool = False


class NodeSynced(_Fact, frozen=True):
    """All reports of a new connection have been applied.

    `held` lists the tasks that the node has, and their states.
    """

    node: NodeName
    held: tuple[tuple[TaskId, TaskState], ...] = ()


class FailureSuspected(_Fact, frozen=True):
    """A rank failed, possibly because of another failure that is still to be reported.

    `ended_at` is when this rank failed, in monotonic seconds of this process.
    """

    node: NodeName
    task: TaskId
    cause: Cause
    ended_at: float


class PortsReported(_Fact, frozen=True):
    """The RDMA ports of a node that have a problem: down, or flapping."""

    node: NodeName
    ports: tuple[PortHealth, ...]


class DisksReported(_Fact, frozen=True):
    """The disks of a node's agent that are full or hang."""

    node: NodeName
    disks: tuple[DiskHealth, ...]


class PeersReported(_Fact, frozen=True):
    """The neighbours of a task, by address, whose machines no longer answer the task's node."""

    node: NodeName
    task: TaskId
    silent: tuple[str, ...]


class SurvivorsReported(_Fact, frozen=True):
    """The processes of a task that survive SIGKILL on a node; () once there are none."""

    node: NodeName
    task: TaskId
    pids: tuple[int, ...]


class NodeHeard(_Fact, frozen=True):
    node: NodeName
    heard_at: float
    lease_until: float
    ahead_s: float = 0.0


class NodeDisconnected(_Fact, frozen=True):
    node: NodeName
    session: SessionId


class LeaseExtended(_Fact, frozen=True):
    """A new coordinator gives each node that may run something a full lease before any verdict."""

    node: NodeName
    lease_until: float


class NodeLeaseExpired(_Fact, frozen=True):
    node: NodeName


class LivenessPaused(_Fact, frozen=True):
    """This process was not running for a while: it judges no silent node before `until`."""

    until: float


class MassOutageDeclared(_Fact, frozen=True):
    """Most agents fell silent at once, `gone` of `of`.

    From `at` on, the coordinator declares nothing lost for `lasts_s`.
    """

    at: float
    lasts_s: float
    gone: int
    of: int


class MassOutageCleared(_Fact, frozen=True):
    """Enough agents are back: the coordinator judges the silent ones from `until` on."""

    until: float


OfJudgement = LivenessPaused | MassOutageDeclared | MassOutageCleared

OfLink = (
    NodeConnected
    | DuplicateNameSeen
    | NodeDescribed
    | NodeSynced
    | FailureSuspected
    | NodeHeard
    | PortsReported
    | PeersReported
    | DisksReported
    | SurvivorsReported
    | NodeDisconnected
    | LeaseExtended
    | NodeLeaseExpired
)
