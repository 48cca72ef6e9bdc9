"""What an agent is to do: the outputs of `decide`."""

from __future__ import annotations

import enum

import msgspec

from agent.core.shim_protocol import ShimCommand
from muster.protocol.control_channel import ArrangeTask, DumpStacks, PrepareTask, Report
from muster.protocol.ids import TaskId


class Timer(enum.Enum):
    """HEARTBEAT: speak, and judge whether the coordinator still does."""

    HEARTBEAT = "heartbeat"


class SendReport(msgspec.Struct, frozen=True):
    """On the connection that is open; where there is none, it is dropped: Hello says everything."""

    report: Report


class CloseLink(msgspec.Struct, frozen=True):
    """End the connection; the shell dials again, at once or, after a refusal, later."""

    why: str
    refused: bool = False


class KeepCluster(msgspec.Struct, frozen=True):
    """Write down whose tasks this node runs from now on."""

    cluster: str


class CreateTask(msgspec.Struct, frozen=True):
    """Make the task's folders, find free ports, start its shim (answered by TaskPlaced, then
    ShimReported, or by ShimFailed)."""

    task: TaskId
    prepare: PrepareTask


class TellShim(msgspec.Struct, frozen=True):
    """In order. A shim that has gone needs no telling."""

    task: TaskId
    command: ShimCommand


class WriteHostfile(msgspec.Struct, frozen=True):
    """Before the start: `text` into the task's host file."""

    task: TaskId
    text: str


class ArrangeNetwork(msgspec.Struct, frozen=True):
    """Make the gang of `plan` reachable from this node, and prove it: write its host table, resolve
    every name (answered by NetworkArranged or NetworkRefused)."""

    task: TaskId
    plan: ArrangeTask


class ReleasePort(msgspec.Struct, frozen=True):
    """Before the gate opens: the port that ArrangeNetwork holds is the program's to listen on."""

    task: TaskId


class WatchTraffic(msgspec.Struct, frozen=True):
    """Before the gate opens: from now on see what carries the traffic of the gang of `plan`
    (answered by TrafficSeen, again and again, where there is something to see)."""

    task: TaskId
    plan: ArrangeTask


class WatchPeers(msgspec.Struct, frozen=True):
    """As the gate opens: from now on see whether the machines of the gang's neighbours answer
    (answered by PeersSeen whenever that changes), until the network is restored."""

    task: TaskId
    plan: ArrangeTask


class TakeStacks(msgspec.Struct, frozen=True):
    """See where the task's ranks stand (answered by StacksSeen)."""

    task: TaskId
    look: DumpStacks


class RestoreNetwork(msgspec.Struct, frozen=True):
    """Take back all that ArrangeNetwork did, be it by an earlier life of the agent, be it under way
    (answered by NetworkRestored)."""

    task: TaskId


class RemoveTask(msgspec.Struct, frozen=True):
    """Remove the task's folder, never following a link (answered by TaskRemoved)."""

    task: TaskId


class SetTimer(msgspec.Struct, frozen=True):
    """Fire once at `at` (monotonic seconds); setting it again moves it."""

    timer: Timer
    at: float


Effect = (
    SendReport
    | CloseLink
    | KeepCluster
    | CreateTask
    | TellShim
    | WriteHostfile
    | ArrangeNetwork
    | ReleasePort
    | WatchTraffic
    | WatchPeers
    | TakeStacks
    | RestoreNetwork
    | RemoveTask
    | SetTimer
)
