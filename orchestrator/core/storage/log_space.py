"""Space of the log store: the limits of a job, and which logs to remove if the disk runs short."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from muster.protocol.ids import JobId

# Several times the volume that arrives at once.
_RESERVE_MIN: Final = 1 << 20
# Part of `free_min` that the newest logs of ended jobs may keep.
_KEPT_PART: Final = 16


class Full(enum.Enum):
    """The limit that the stored logs have reached."""

    JOB = "job"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum of stored bytes. A limit may be exceeded by one chunk."""

    job_bytes: int
    task_bytes: int

    def reached(self, job_used: int, task_used: int) -> Full | None:
        """The limit that a job with these stored bytes has reached; None if it has reached no
        limit.
        """
        if job_used >= self.job_bytes:
            return Full.JOB
        return Full.TASK if task_used >= self.task_bytes else None


class JobUse(NamedTuple):
    """Stored log bytes of a job; `ended_at` (UTC seconds) is None while the job has not ended."""

    job: JobId
    used: int
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The logs to remove, and the bytes beyond which a running job has to wait (None: no limit)."""

    remove: tuple[JobId, ...] = ()
    share: int | None = None


def low_mark(free_min: int) -> int:
    """Free bytes below which the store is short.

    The store never goes below `free_min`. The space between the two is for jobs that have used
    little: a job that fills the disk down to this mark cannot take it from them.
    """
    return free_min + max(free_min, _RESERVE_MIN)


def plan(jobs: Iterable[JobUse], free: int, free_min: int) -> Plan:
    """Decide which logs to remove with `free` bytes left on the disk.

    Logs of ended jobs go first, the oldest first. The newest of them are kept as long as all that
    is kept is small: their removal would free little, and their users have not read them yet. The
    rest is shared equally between the running jobs and one more, so that a new job finds room, too.
    """
    low = low_mark(free_min)
    if free >= low:
        return Plan()
    jobs = list(jobs)
    # More than the mark, as otherwise each byte that arrives would cause another decision.
    wanted = low + free_min // 2
    ended = [(use.ended_at, use) for use in jobs if use.ended_at is not None and use.used > 0]
    left = sum(use.used for _, use in ended)
    remove: list[JobId] = []
    for _, use in sorted(ended, key=lambda found: (found[0], found[1].job)):
        if free >= wanted or left <= free_min // _KEPT_PART:
            break
        left -= use.used
        remove.append(use.job)
        free += use.used
    running = [use.used for use in jobs if use.ended_at is None]
    room = sum(running) + max(0, free - free_min)
    return Plan(tuple(remove), room // (len(running) + 1))
