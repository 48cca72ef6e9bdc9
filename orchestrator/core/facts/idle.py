"""Facts about gangs whose GPUs are idle."""

from __future__ import annotations

import msgspec

from muster.protocol.ids import JobId, TaskId


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class GpusReported(_Fact, frozen=True):
    """The newest report of a node: since when its task's GPUs are idle (monotonic seconds of this
    process). None if they are busy or cannot be read."""

    task: TaskId
    since: float | None


class IdleTimed(_Fact, frozen=True):
    """The idle GPUs were reported to users at `at` (monotonic seconds of this process)."""

    job: JobId
    attempt: int
    at: float


class IdleJudged(_Fact, frozen=True):
    """All GPUs of the gang have been idle for the time that its job configures."""

    job: JobId
    attempt: int
    text: str


class IdleOver(_Fact, frozen=True):
    """A GPU of the gang is busy again, or cannot be read."""

    job: JobId
    attempt: int


IdleWatching = GpusReported | IdleTimed
"""Facts of this process alone; never journaled."""
OfIdle = IdleWatching | IdleJudged | IdleOver
