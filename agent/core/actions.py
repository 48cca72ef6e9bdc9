"""What an agent is to do: the outputs of `decide`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agent.core.shim import ShimCommand
from muster.protocol.ids import TaskId
from muster.protocol.messages import ArrangeTask, LookTask, PrepareTask, Report


class Timer(enum.Enum):
    """HEARTBEAT: speak, and judge whether the coordinator still does."""

    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class SendReport:
    """On the connection that is open; where there is none, it is dropped: Hello says everything."""

    report: Report


@dataclass(frozen=True, slots=True)
class CloseLink:
    """End the connection; the shell dials again, at once or, after a refusal, later."""

    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class KeepCluster:
    """Write down whose tasks this node runs from now on."""

    cluster: str


@dataclass(frozen=True, slots=True)
class CreateTask:
    """Make the task's folders, find free ports, start its shim (answered by TaskPlaced, then
    ShimReported, or by ShimFailed)."""

    task: TaskId
    prepare: PrepareTask


@dataclass(frozen=True, slots=True)
class TellShim:
    """In order. A shim that has gone needs no telling."""

    task: TaskId
    command: ShimCommand


@dataclass(frozen=True, slots=True)
class WriteHostfile:
    """Before the start: `text` into the task's host file."""

    task: TaskId
    text: str


@dataclass(frozen=True, slots=True)
class ArrangeNetwork:
    """Make the gang of `plan` reachable from this node, and prove it: write its host table, resolve
    every name (answered by NetworkArranged or NetworkRefused)."""

    task: TaskId
    plan: ArrangeTask


@dataclass(frozen=True, slots=True)
class LetGo:
    """Before the gate opens: the port that ArrangeNetwork holds is the program's to listen on."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class WatchTraffic:
    """Before the gate opens: from now on see what carries the traffic of the gang of `plan`
    (answered by TrafficSeen, again and again, where there is something to see)."""

    task: TaskId
    plan: ArrangeTask


@dataclass(frozen=True, slots=True)
class WatchPeers:
    """As the gate opens: from now on see whether the machines of the gang's neighbours answer
    (answered by PeersSeen whenever that changes), until the network is restored."""

    task: TaskId
    plan: ArrangeTask


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """See where the task's ranks stand (answered by StacksSeen)."""

    task: TaskId
    look: LookTask


@dataclass(frozen=True, slots=True)
class RestoreNetwork:
    """Take back all that ArrangeNetwork did, be it by an earlier life of the agent, be it under way
    (answered by NetworkRestored)."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """Remove the task's folder, never following a link (answered by TaskRemoved)."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire once at `at` (monotonic seconds); setting it again moves it."""

    timer: Timer
    at: float


Action = (
    SendReport
    | CloseLink
    | KeepCluster
    | CreateTask
    | TellShim
    | WriteHostfile
    | ArrangeNetwork
    | LetGo
    | WatchTraffic
    | WatchPeers
    | TakeStacks
    | RestoreNetwork
    | RemoveTask
    | SetTimer
)
