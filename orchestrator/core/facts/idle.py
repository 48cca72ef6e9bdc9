"""What has happened with a gang whose GPUs are idle."""

from __future__ import annotations

import msgspec

from muster.protocol.ids import JobId, TaskId


class _Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class GpusReported(_Fact, frozen=True):
    """A node's newest word on since when the GPUs of its task are idle, in this process's monotonic
    seconds; None: they are not, or it cannot tell."""

    task: TaskId
    since: float | None


class IdleTimed(_Fact, frozen=True):
    """It was told at `at`, in this process's monotonic seconds."""

    job: JobId
    attempt: int
    at: float


class IdleJudged(_Fact, frozen=True):
    """All GPUs of the gang have been idle for as long as its job has said."""

    job: JobId
    attempt: int
    text: str


class IdleOver(_Fact, frozen=True):
    """One of them is not any more, or cannot be read."""

    job: JobId
    attempt: int


IdleWatching = GpusReported | IdleTimed
"""Of this process alone."""
OfIdle = IdleWatching | IdleJudged | IdleOver
