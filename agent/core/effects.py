"""Effects: the outputs of the agent's core, carried out by the daemon."""

from __future__ import annotations

import enum

import msgspec

from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimCommand
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, DumpStacks, PrepareTask, Report
from muster.protocol.observations.node_settings import NodeSetting


class Timer(enum.Enum):
    """HEARTBEAT: send a heartbeat and check that the coordinator is still alive. VOUCHES: ask the
    members of gangs."""

    HEARTBEAT = "heartbeat"
    VOUCHES = "vouches"


class SendReport(msgspec.Struct, frozen=True):
    """Send a report on the open connection. Without one it is dropped, because the next Hello
    contains everything."""

    report: Report


class CloseLink(msgspec.Struct, frozen=True):
    """End the connection. The link dials again: at once, or later after a refusal."""

    why: str
    refused: bool = False


class KeepCluster(msgspec.Struct, frozen=True):
    """Store the name of the cluster whose tasks this node runs from now on."""

    cluster: str


class UseUsers(msgspec.Struct, frozen=True):
    """Judge by these users whether any job could run here."""

    users: tuple[str, ...] | None


class UseSettings(msgspec.Struct, frozen=True):
    """Use the settings that the coordinator gives this node, instead of those that it gave before.
    Answered by NodeObserved with those in force."""

    given: tuple[NodeSetting, ...]


class CreateTask(msgspec.Struct, frozen=True):
    """Create the task's directories, find free ports and start its shim. Answered by TaskPlaced,
    then ShimReported; or by ShimFailed."""

    task: TaskId
    prepare: PrepareTask


class StoreRecord(msgspec.Struct, frozen=True):
    """Write the record of the task to disk, instead of an earlier one (answered by RecordStored).
    Needs the task's directories. Of several, only the last one may be written."""

    task: TaskId
    record: TaskRecord


class Question(msgspec.Struct, frozen=True):
    """A datagram to the agent of another member of a gang."""

    address: str
    port: int
    data: bytes


class AskMembers(msgspec.Struct, frozen=True):
    """Ask agents of a gang for their vouches (each may be answered by VouchReceived)."""

    questions: tuple[Question, ...]


class SendToShim(msgspec.Struct, frozen=True):
    """Send a command to the task's shim, in order. If the shim has exited, the command is
    dropped."""

    task: TaskId
    command: ShimCommand


class ArrangeNetwork(msgspec.Struct, frozen=True):
    """Make the gang of `plan` reachable from this node and verify it: write the hosts table,
    resolve every name, reach the launcher (answered by NetworkArranged or NetworkRefused)."""

    task: TaskId
    plan: ArrangeTask


class ReleasePort(msgspec.Struct, frozen=True):
    """Release the port that ArrangeNetwork holds, before the gate opens and the program listens on
    it."""

    task: TaskId


class WatchTraffic(msgspec.Struct, frozen=True):
    """Start to collect traffic evidence for the gang of `plan`, before the gate opens (answered by
    TaskObserved whenever the evidence changes)."""

    task: TaskId
    plan: ArrangeTask


class WatchPeers(msgspec.Struct, frozen=True):
    """Start to watch whether the machines of the gang's neighbours answer, as the gate opens.
    Answered by TaskObserved on every change, until RestoreNetwork."""

    task: TaskId
    plan: ArrangeTask


class TakeStacks(msgspec.Struct, frozen=True):
    """Take stack dumps of the task's ranks (answered by StacksObserved)."""

    task: TaskId
    look: DumpStacks


class RestoreNetwork(msgspec.Struct, frozen=True):
    """Undo all that ArrangeNetwork did or is doing, also what an earlier agent process did
    (answered by NetworkRestored)."""

    task: TaskId


class RemoveTask(msgspec.Struct, frozen=True):
    """Remove the task's directory without following links (answered by TaskRemoved)."""

    task: TaskId


class SetTimer(msgspec.Struct, frozen=True):
    """Fire once at `at` (monotonic seconds). Setting the timer again moves it."""

    timer: Timer
    at: float


Effect = (
    SendReport
    | CloseLink
    | KeepCluster
    | UseSettings
    | UseUsers
    | CreateTask
    | StoreRecord
    | AskMembers
    | SendToShim
    | ArrangeNetwork
    | ReleasePort
    | WatchTraffic
    | WatchPeers
    | TakeStacks
    | RestoreNetwork
    | RemoveTask
    | SetTimer
)
