"""Facts: the only changes to an agent's state.

The agent journals none of them. State that has to outlive the agent is on disk in each task's
directory: the shim's, and a record of what the coordinator has said of the task.
"""

from __future__ import annotations

import msgspec

from agent.core.inputs import TaskChanges, TaskPaths
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimStatus, ShimUser
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    NodeChanges,
    PrepareTask,
    Refusal,
    StopTask,
)
from muster.protocol.link.terms import Terms
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.node_settings import NodeSetting


class LinkOpened(msgspec.Struct, frozen=True):
    at: float


class LinkClosed(msgspec.Struct, frozen=True):
    pass


class Welcomed(msgspec.Struct, frozen=True):
    epoch: int
    cluster: str
    heartbeat_s: float
    given: tuple[NodeSetting, ...] = ()


class SettingsChanged(msgspec.Struct, frozen=True):
    """The coordinator gives other settings than before."""

    given: tuple[NodeSetting, ...]


class Heard(msgspec.Struct, frozen=True):
    at: float


class Acknowledged(msgspec.Struct, frozen=True):
    """The coordinator has answered what the agent asked at `at`: all leases count from then."""

    at: float


class NodeChanged(msgspec.Struct, frozen=True):
    changes: NodeChanges


class TaskAccepted(msgspec.Struct, frozen=True):
    task: TaskId
    prepare: PrepareTask


class TaskAdopted(msgspec.Struct, frozen=True):
    """The agent has taken over a task that an earlier agent process started."""

    task: TaskId
    status: ShimStatus
    paths: TaskPaths
    ports: tuple[int, ...]
    at: float
    fabric: NodeFabric
    gpus: tuple[str, ...] = ()
    lease_s: float | None = None
    record: TaskRecord | None = None


class RecordKept(msgspec.Struct, frozen=True):
    """The record of the task is on disk."""

    task: TaskId
    record: TaskRecord


class RoundBegun(msgspec.Struct, frozen=True):
    """The agent begins to ask the other members of the gang for their vouches."""

    task: TaskId
    at: float


class MemberVouched(msgspec.Struct, frozen=True):
    """A member has vouched for the task in the current round."""

    task: TaskId
    member: TaskId


class TaskDirsCreated(msgspec.Struct, frozen=True):
    task: TaskId
    paths: TaskPaths
    ports: tuple[int, ...]
    user: ShimUser | None = None
    prolog: str = ""


class TaskChanged(msgspec.Struct, frozen=True):
    """The monitors of this node have new observations of the task."""

    task: TaskId
    changes: TaskChanges
    at: float


class ShimSeen(msgspec.Struct, frozen=True):
    task: TaskId
    status: ShimStatus
    at: float
    no_output: bool = False


class TaskFailed(msgspec.Struct, frozen=True):
    """The task never had a shim, none of its processes runs, and all its logs are empty."""

    task: TaskId
    refusal: Refusal


class PlanTaken(msgspec.Struct, frozen=True):
    task: TaskId
    arrange: ArrangeTask


class TermsTaken(msgspec.Struct, frozen=True):
    task: TaskId
    terms: Terms


class NetworkReady(msgspec.Struct, frozen=True):
    task: TaskId
    warnings: tuple[str, ...]


class NetworkDenied(msgspec.Struct, frozen=True):
    task: TaskId
    refusal: Refusal


class NetworkFreed(msgspec.Struct, frozen=True):
    task: TaskId


class GateOpened(msgspec.Struct, frozen=True):
    """The coordinator allows the start. If the network is still being arranged, the gate opens
    after that."""

    task: TaskId


class StopTaken(msgspec.Struct, frozen=True):
    task: TaskId
    stop: StopTask


class StoppedUnseen(msgspec.Struct, frozen=True):
    """The coordinator stopped the task before the agent ever saw it: never prepare it."""

    task: TaskId


class Forgotten(msgspec.Struct, frozen=True):
    task: TaskId


class LogsKept(msgspec.Struct, frozen=True):
    task: TaskId


class EpilogSaid(msgspec.Struct, frozen=True):
    """The last line of the site's epilog for the task."""

    task: TaskId
    line: str


class TaskGone(msgspec.Struct, frozen=True):
    task: TaskId


LinkFact = LinkOpened | LinkClosed | Welcomed | SettingsChanged | Heard | Acknowledged
TaskFact = (
    TaskAccepted
    | TaskAdopted
    | RecordKept
    | RoundBegun
    | MemberVouched
    | TaskDirsCreated
    | TaskChanged
    | ShimSeen
    | TaskFailed
    | PlanTaken
    | TermsTaken
    | NetworkReady
    | NetworkDenied
    | NetworkFreed
    | GateOpened
    | StopTaken
    | StoppedUnseen
    | Forgotten
    | LogsKept
    | EpilogSaid
    | TaskGone
)
Fact = LinkFact | NodeChanged | TaskFact
