"""Facts about gangs that may hang. Only verdicts are durable: a new process evaluates again."""

from __future__ import annotations

import msgspec

from muster.protocol.control_channel import StacksReport
from muster.protocol.hangs import HangVerdict, RankActivity, RankStacks
from muster.protocol.ids import JobId, TaskId


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class ActivityMeasured(_Fact, frozen=True):
    """The newest report of a node on the activity of its task's ranks. `at` is in monotonic seconds
    of this process."""

    task: TaskId
    ranks: tuple[RankActivity, ...]
    at: float


class StackDumpBegun(_Fact, frozen=True):
    """A stack dump of these tasks has begun and ends at `until`; `requests` wait for it.

    `judges`: the dump decides whether the gang hangs. `notes` are sentences on what is missing.
    """

    job: JobId
    attempt: int
    number: int
    tasks: tuple[TaskId, ...]
    until: float
    requests: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    judges: bool = False


class StackDumpJoined(_Fact, frozen=True):
    """Another request waits for the current stack dump."""

    job: JobId
    attempt: int
    request: int


class StacksReported(_Fact, frozen=True):
    """A task has answered the stack dump."""

    task: TaskId
    report: StacksReport


class StackDumpEnded(_Fact, frozen=True):
    job: JobId
    attempt: int


class HangSuspected(_Fact, frozen=True):
    """The stacks of a suspected hang. A second dump at `again_at` shows whether they still hold."""

    job: JobId
    attempt: int
    stacks: tuple[RankStacks, ...]
    again_at: float


class HangDismissed(_Fact, frozen=True):
    """No hang was found, or none beyond the verdict on record.

    If `again_at` is given, there is no stack dump before it.
    """

    job: JobId
    attempt: int
    again_at: float = 0.0


class HangJudged(_Fact, frozen=True):
    """The gang hangs, or is slow."""

    job: JobId
    attempt: int
    verdict: HangVerdict


class HangCleared(_Fact, frozen=True):
    """The gang makes progress again."""

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
"""Facts of this process alone; never journaled."""
OfHang = Looking | HangJudged | HangCleared
