"""What has happened with a gang that may hang. Only verdicts are journaled: the rest is looked at
again by the next process."""

from __future__ import annotations

import msgspec

from muster.protocol.control_channel import StacksReport
from muster.protocol.hangs import HangVerdict, RankActivity, RankStacks
from muster.protocol.ids import JobId, TaskId


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class ActivityMeasured(_Fact, frozen=True):
    """A node's newest word on whether the ranks of its task move, at `at` in this process's
    monotonic seconds."""

    task: TaskId
    ranks: tuple[RankActivity, ...]
    at: float


class StackDumpBegun(_Fact, frozen=True):
    """These tasks are asked where their ranks stand, until `until`; `requests` wait for the answer.
    `judges`: it is to tell whether the gang hangs. `notes` are sentences on what is missing."""

    job: JobId
    attempt: int
    number: int
    tasks: tuple[TaskId, ...]
    until: float
    requests: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    judges: bool = False


class StackDumpJoined(_Fact, frozen=True):
    """One more waits for the look under way."""

    job: JobId
    attempt: int
    request: int


class StacksReported(_Fact, frozen=True):
    """One of those that were asked has answered."""

    task: TaskId
    report: StacksReport


class StackDumpEnded(_Fact, frozen=True):
    job: JobId
    attempt: int


class HangSuspected(_Fact, frozen=True):
    """The ranks stood there; whether they still do is seen at `again_at`."""

    job: JobId
    attempt: int
    stacks: tuple[RankStacks, ...]
    again_at: float


class HangDismissed(_Fact, frozen=True):
    """It does not hang, or no more than was told, as far as that can be said; it is not looked at
    before `again_at`, where that is given."""

    job: JobId
    attempt: int
    again_at: float = 0.0


class HangJudged(_Fact, frozen=True):
    """The gang hangs, or is slow."""

    job: JobId
    attempt: int
    verdict: HangVerdict


class HangCleared(_Fact, frozen=True):
    """It moves again."""

    job: JobId
    attempt: int


Looking = (
    ActivityMeasured
    | StackDumpBegun
    | StackDumpJoined
    | StacksReported
    | StackDumpEnded
    | HangSuspected
    | HangDismissed
)
"""Of this process alone."""
OfHang = Looking | HangJudged | HangCleared
