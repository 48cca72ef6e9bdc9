"""Facts about the agents' connections. They belong to this process and are never journaled."""

from __future__ import annotations

from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import Inventory
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.hardware_events import HardwareEvent
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.traffic import PortHealth
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from orchestrator.core.facts.base import (
    EPHEMERAL,
    BaseFact,
    Inert,
)


class LinkFact(BaseFact, family=True, durability=EPHEMERAL, revises=False):
    """A fact about the connection of an agent."""

    node: NodeName


class NodeConnected(LinkFact, reschedules=True, milestone=True):
    """`heard_at` is in monotonic seconds of this process.

    `ahead_s` is how far the agent's wall clock is ahead of ours, 0 if that is little or unknown.
    `instance` identifies the agent's process. `made_s` is the `made_s` of its Hello.
    """

    session: SessionId
    peer: str
    heard_at: float
    protocol: int = 1
    ahead_s: float = 0.0
    instance: str = ""
    made_s: float = 0.0


class DuplicateNameSeen(LinkFact, Inert, reschedules=False, milestone=False):
    """An agent at `peer` was refused, because another agent has its name.

    `at` is in monotonic seconds of this process.
    """

    peer: str
    at: float


class NodeDescribed(LinkFact, Inert, reschedules=True, milestone=False):
    """A known node's current description, as its agent reports it.

    `unrecorded`: the journal does not have all of it that lasts, because NodeRegistered is
    rate-limited. `recorded_at`: the journal has it, since that time (monotonic seconds of this
    process). `new`: the node's name is new.
    """

    version: str
    inventory: Inventory
    unrecorded: bool = False
    recorded_at: float | None = None
    new: bool = False


class NodeSynced(LinkFact, reschedules=False, milestone=False):
    """All reports of a new connection have been applied.

    `held` lists the tasks that the node has, and their states.
    """

    held: tuple[tuple[TaskId, TaskState], ...] = ()


class FailureSuspected(LinkFact, reschedules=False, milestone=False):
    """A rank failed, possibly because of another failure that is still to be reported.

    `ended_at` is when this rank failed, in monotonic seconds of this process.
    """

    task: TaskId
    cause: Cause
    ended_at: float


class NodeHealthReported(LinkFact, Inert, reschedules=True, milestone=False):
    """The RDMA ports of a node that are down or flapping, its disks that are full or hang, why it
    refuses every job ("": it takes them), and why its own interpreter has no torch ("": it has)."""

    ports: tuple[PortHealth, ...]
    disks: tuple[DiskHealth, ...]
    refuses_jobs: str = ""
    no_torch: str = ""


class NodeSettingsReported(LinkFact, Inert, reschedules=False, milestone=False):
    """The settings of a node's agent that a coordinator may give, as they are in force."""

    settings: tuple[NodeSetting, ...]


class SurvivorsReported(LinkFact, Inert, reschedules=False, milestone=False):
    """The processes of a task that survive SIGKILL on a node; () once there are none."""

    task: TaskId
    pids: tuple[int, ...]


class UnknownTasksHeld(LinkFact, reschedules=True, milestone=True):
    """A node said hello. `tasks` are those that the journal lacks; none is proved over.

    Only if the node had some before, or is awaited after a restore.
    """

    tasks: tuple[TaskId, ...]


class UnknownTaskOver(LinkFact, reschedules=True, milestone=True):
    """A task in UnknownTasksHeld is proved over."""

    task: TaskId


class HardwareSeen(LinkFact, Inert, reschedules=False, milestone=False):
    """A hardware event that is not recorded, because there were too many. `at` is UTC seconds."""

    event: HardwareEvent
    at: float


class HardwareCounted(LinkFact, Inert, reschedules=False, milestone=False):
    """So many kills for lack of memory and other hardware events of a node were recorded at `at`
    (monotonic seconds). `last` is the boot and number of the newest event, recorded or not."""

    last: tuple[str, int]
    kills: int
    others: int
    at: float


class NodeHeard(LinkFact, Inert, reschedules=False, milestone=False):
    heard_at: float
    ahead_s: float = 0.0


class NodeDisconnected(LinkFact, reschedules=True, milestone=True):
    session: SessionId


class NodeAwaited(LinkFact, Inert, reschedules=True, milestone=False):
    """A new coordinator waits for a node that may run something.

    The last coordinator may have answered the node until `answered_at` (monotonic seconds of this
    process), so that every lease counts from there.
    """

    answered_at: float


class TaskMuted(LinkFact, reschedules=False, milestone=False):
    """From `at` on (monotonic seconds) the node vouches for no other member of the task's attempt.

    It has a stop of the task on its disk, or nothing of the task.
    """

    task: TaskId
    at: float


class NodeGivenUp(LinkFact, Inert, reschedules=True, milestone=True):
    """The node has been silent for so long that no job waits for it. Its tasks may run on."""


OfLink = (
    NodeConnected
    | DuplicateNameSeen
    | NodeDescribed
    | NodeSynced
    | UnknownTasksHeld
    | UnknownTaskOver
    | FailureSuspected
    | NodeHeard
    | NodeHealthReported
    | NodeSettingsReported
    | SurvivorsReported
    | HardwareSeen
    | HardwareCounted
    | NodeDisconnected
    | NodeAwaited
    | NodeGivenUp
    | TaskMuted
)
