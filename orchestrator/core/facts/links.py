"""Facts about the agents' connections: they are of this process, and never in the journal."""

from __future__ import annotations

import msgspec

from muster.protocol.disks import DiskHealth
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from muster.protocol.traffic import PortHealth


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class NodeConnected(_Fact, frozen=True):
    """`lease_until` and `heard_at` are this process's monotonic seconds; `ahead_s` is how far the
    agent's wall clock is ahead of ours, 0 where that is little or not told; `instance` is its life.
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
    """An agent at `peer` was refused, as it calls itself like one that is there; `at` in this
    process's monotonic seconds."""

    node: NodeName
    peer: str
    at: float


class NodeSynced(_Fact, frozen=True):
    """All that a new connection told has been taken in; `held` is what the node has, in which
    state."""

    node: NodeName
    held: tuple[tuple[TaskId, TaskState], ...] = ()


class FailureSuspected(_Fact, frozen=True):
    """A rank has failed as ranks do when another one has failed. Whether another one has is soon to
    be heard; `ended_at` is when this one did, in this process's monotonic seconds."""

    node: NodeName
    task: TaskId
    cause: Cause
    ended_at: float


class PortsReported(_Fact, frozen=True):
    """The RDMA ports of a node that are not as they were."""

    node: NodeName
    ports: tuple[PortHealth, ...]


class DisksReported(_Fact, frozen=True):
    """The disks of a node's agent that are full or hang."""

    node: NodeName
    disks: tuple[DiskHealth, ...]


class PeersReported(_Fact, frozen=True):
    """The neighbours of a task, by address, whose machines do not answer its node any more."""

    node: NodeName
    task: TaskId
    silent: tuple[str, ...]


class SurvivorsReported(_Fact, frozen=True):
    """Processes of a task that SIGKILL does not end, on a node; none: it holds none any more."""

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
    """A new coordinator gives every node that may run something a full lease before it judges."""

    node: NodeName
    lease_until: float


class NodeLeaseExpired(_Fact, frozen=True):
    node: NodeName


class LivenessPaused(_Fact, frozen=True):
    """This process was not running for a while: no silent node is judged before `until`."""

    until: float


class MassOutageDeclared(_Fact, frozen=True):
    """Most agents fell silent at once, `gone` of `of`: from `at` on nothing is called lost."""

    at: float
    lasts_s: float
    gone: int
    of: int


class MassOutageCleared(_Fact, frozen=True):
    """Enough of them are back: those that are not are judged from `until` on."""

    until: float


OfJudgement = LivenessPaused | MassOutageDeclared | MassOutageCleared

OfLink = (
    NodeConnected
    | DuplicateNameSeen
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
