"""Facts about gangs that may hang. Only verdicts are durable: a new process evaluates again."""

from __future__ import annotations

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import StacksReport
from muster.protocol.observations.hangs import HangVerdict, RankStacks
from orchestrator.core.facts.base import (
    EPHEMERAL,
    LAZY,
    SYNC,
    AttemptFact,
    BaseFact,
    Inert,
)


class HangFact(BaseFact, family=True, reschedules=False, milestone=False):
    """A fact about a gang that may hang."""


class StackDumpBegun(HangFact, AttemptFact, durability=EPHEMERAL, revises=False):
    """A stack dump of these tasks has begun and ends at `until`; `requests` wait for it.

    `judges`: the dump decides whether the gang hangs. `notes` are sentences on what is missing.
    """

    number: int
    tasks: tuple[TaskId, ...]
    until: float
    requests: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    judges: bool = False


class StackDumpJoined(HangFact, AttemptFact, Inert, durability=EPHEMERAL, revises=False):
    """Another request waits for the current stack dump."""

    request: int


class StacksReported(HangFact, durability=EPHEMERAL, revises=False):
    """A task has answered the stack dump."""

    task: TaskId
    report: StacksReport


class StackDumpEnded(HangFact, AttemptFact, Inert, durability=EPHEMERAL, revises=False):
    """All tasks have answered the stack dump, or its time is over."""


class HangSuspected(HangFact, AttemptFact, Inert, durability=EPHEMERAL, revises=False):
    """The stacks of a suspected hang. A second dump at `again_at` shows whether they still hold."""

    stacks: tuple[RankStacks, ...]
    again_at: float


class HangDismissed(HangFact, AttemptFact, Inert, durability=EPHEMERAL, revises=False):
    """No hang was found, or none beyond the verdict on record.

    If `again_at` is given, there is no stack dump before it.
    """

    again_at: float = 0.0


class HangJudged(HangFact, AttemptFact, durability=SYNC):
    """The gang hangs, or is slow."""

    verdict: HangVerdict

    def describe(self) -> str:
        return self.verdict.text


class HangCleared(HangFact, AttemptFact, Inert, durability=LAZY):
    """The gang makes progress again."""

    def describe(self) -> str:
        return "it moves again"


OfHang = (
    StackDumpBegun
    | StackDumpJoined
    | StacksReported
    | StackDumpEnded
    | HangSuspected
    | HangDismissed
    | HangJudged
    | HangCleared
)
