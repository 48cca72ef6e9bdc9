"""Facts about the queues: promised starts, and the plan behind them."""

from __future__ import annotations

from muster.protocol.ids import JobId, NodeName
from muster.protocol.text import named
from muster.protocol.timestamp import timestamp
from orchestrator.core.facts.base import EPHEMERAL, LAZY, ClusterFact, Inert, JobFact
from orchestrator.core.model.plan import QueueEvent, QueuePlan


class PromiseFact(JobFact, family=True, reschedules=False, milestone=False, revises=False):
    """A fact about the promised start of a waiting job."""


class StartPromised(PromiseFact, Inert, durability=LAZY):
    """The job starts at `at` (UTC seconds) at the latest, unless a named event moves that."""

    at: float

    def describe(self) -> str:
        return f"promised start: by {timestamp(self.at):%Y-%m-%dT%H:%M:%SZ}"


class StartMoved(PromiseFact, Inert, durability=LAZY):
    """The promised start moved to `at`, by `event`. None: the start is unknown now."""

    at: float | None
    event: QueueEvent

    def describe(self) -> str:
        if self.at is None:
            to = "is unknown now"
        else:
            to = f"moved to {timestamp(self.at):%Y-%m-%dT%H:%M:%SZ}"
        return f"the promised start {to}, because {self.event.text}"


class JobPassed(PromiseFact, Inert, durability=LAZY):
    """Another job, `by`, started on `nodes` before this one, which is ahead of it in the queue.

    `why` explains in words why that costs this job nothing.
    """

    by: JobId
    nodes: tuple[NodeName, ...]
    why: str

    def describe(self) -> str:
        return f"job {self.by} started ahead on {named(self.nodes)}: {self.why}"


class QueuesPlanned(ClusterFact, Inert, durability=EPHEMERAL, reschedules=False, milestone=False):
    """The scheduler has looked at the queues."""

    plan: QueuePlan


class QueuesDue(ClusterFact, Inert, durability=EPHEMERAL, reschedules=True, milestone=False):
    """A planned start has come, or the last pass over the queues was not finished."""


OfQueue = StartPromised | StartMoved | JobPassed | QueuesPlanned | QueuesDue
