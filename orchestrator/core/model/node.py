"""A node's link state, its service state, and its tasks that the journal lacks.

The first two are independent: a drain or a quarantine holds whether the node is connected or not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster.protocol.ids import JobId, NodeName, TaskId, parse_task_id
from muster.protocol.instant import Instant
from muster.spec.units import duration_text

ITSELF: Final = "muster"
"""The user of drains and holds that the coordinator starts by itself."""


class LinkState(enum.Enum):
    """OFFLINE: not connected in this epoch. SUSPECT: silent. LOST: silent for so long that no job
    waits for it, or declared lost. None of these says that its tasks are over."""

    OFFLINE = "offline"
    CONNECTED = "connected"
    SUSPECT = "suspect"
    LOST = "lost"


LINK_TRANSITIONS: Final[dict[LinkState, frozenset[LinkState]]] = {
    LinkState.OFFLINE: frozenset({LinkState.CONNECTED, LinkState.SUSPECT, LinkState.LOST}),
    LinkState.CONNECTED: frozenset({LinkState.CONNECTED, LinkState.SUSPECT}),
    LinkState.SUSPECT: frozenset({LinkState.CONNECTED, LinkState.LOST}),
    LinkState.LOST: frozenset({LinkState.CONNECTED}),
}


THERE: Final = (LinkState.CONNECTED, LinkState.SUSPECT)
"""Nodes that may become free."""
SILENT: Final = frozenset({LinkState.SUSPECT, LinkState.LOST})


class AdminState(enum.Enum):
    """Derived: DRAINING gets no more jobs and still has one, DRAINED has none."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"


class Drain(msgspec.Struct, frozen=True):
    """The node is out of service, by `user`, since `at` (UTC seconds, for display only).

    `left_s` seconds of the deadline were left when last recorded, at `left_at`. None: running jobs
    may end by themselves. `after_checkpoint`: a job may leave once it has written a checkpoint.
    `jobs`: those for whose failures the coordinator itself has quarantined the node. `number`
    distinguishes the drains of a node. `left_by`: the job, and its user, whose processes survive
    SIGKILL there.
    """

    user: str
    reason: str
    at: float
    number: int = 1
    deadline_s: float | None = None
    left_s: float | None = None
    left_at: float = 0.0
    jobs: tuple[JobId, ...] = ()
    after_checkpoint: bool = False
    left_by: tuple[JobId, str] | None = None


class Fault(msgspec.Struct, frozen=True):
    """A job with an attempt that failed by this node's fault.

    Since then, `since` attempts have ended well on the node.
    """

    job: JobId
    attempt: int
    text: str
    since: int = 0


SUPPOSED: Final = Drain("", "", 0.0, number=0)
"""A drain that a what-if question supposes. No user has drained the node."""


def is_drained(drain: Drain, now: Instant | None = None) -> str:
    """The drain in words, to follow the node's name: `is drained by ana since 2h: bad DIMM`."""
    if drain == SUPPOSED:
        return "would be drained"
    return f"is {drained_by(drain, now)}"


def drained_by(drain: Drain, now: Instant | None = None) -> str:
    """The drain in words, to follow the node's name and `is`: `drained by ana since 2h: bad
    DIMM`."""
    since = "" if now is None else f" since {rounded_down(now.wall - drain.at)}"
    return f"drained by {drain.user}{since}: {drain.reason}"


def rounded_down(seconds: float) -> str:
    """Return the duration in its largest non-zero unit: 2h, 5m, 0s."""
    whole = int(max(0.0, seconds))
    for unit_s in (86400, 3600, 60):
        if whole >= unit_s:
            return duration_text(float(whole - whole % unit_s))
    return duration_text(float(whole))


@dataclass(slots=True)
class UnknownTasks:
    """The tasks that nodes have, the journal lacks, and that are not proved over."""

    by_node: dict[NodeName, set[TaskId]] = field(default_factory=dict)
    by_job: dict[JobId, set[tuple[NodeName, TaskId]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_node)

    def on(self, node: NodeName) -> list[TaskId]:
        """The tasks on a node, in order."""
        return sorted(self.by_node.get(node, ()))

    def of(self, job: JobId) -> list[tuple[NodeName, TaskId]]:
        """The tasks of a job, in order."""
        return sorted(self.by_job.get(job, ()))

    def replace(self, node: NodeName, tasks: Iterable[TaskId]) -> None:
        """Put these tasks in the place of those on the node."""
        for task in self.on(node):
            self.discard(node, task)
        for task in tasks:
            self.by_node.setdefault(node, set()).add(task)
            self.by_job.setdefault(parse_task_id(task)[0], set()).add((node, task))

    def discard(self, node: NodeName, task: TaskId) -> None:
        """Remove a task, if it is there."""
        job = parse_task_id(task)[0]
        there, its = self.by_node.get(node, set()), self.by_job.get(job, set())
        there.discard(task)
        its.discard((node, task))
        if not there:
            self.by_node.pop(node, None)
        if not its:
            self.by_job.pop(job, None)

    def clear(self) -> None:
        self.by_node.clear()
        self.by_job.clear()
