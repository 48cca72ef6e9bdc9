"""Retention of logs: by age and by size together, the oldest ended jobs first.

Logs of running jobs are never removed. Those of a job that ended within the last hour stay while a
node may still deliver some. While the clock is in doubt, or not confirmed yet, no logs are removed
for their age, and otherwise only a limited number at once.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Never

import structlog

from muster.protocol.ids import JobId
from orchestrator.core.gangs.log_delivery import tasks_with_pending_logs
from orchestrator.core.model.job import JobPhase
from orchestrator.core.storage.removal import Allowance
from orchestrator.journal.errors import JournalError
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.layout import bytes_below, present_jobs
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError
from orchestrator.shell.logs.tombstone import is_mark
from orchestrator.shell.wall_clock_age import WallClockAge

SWEEP_EVERY_S: Final = 60.0
_SETTLED_S: Final = 3600.0
_AT_ONCE: Final = 1000

_log = structlog.get_logger("muster.logs")


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits: logs of jobs that ended at most `age_s` ago, and `bytes_max` in total."""

    age_s: float
    bytes_max: int


class Retention:
    """Removes logs that are too old or too large."""

    def __init__(self, root: Path, store: LogStore, coordinator: Coordinator, keep: Keep) -> None:
        self._root = root
        self._store = store
        self._coordinator = coordinator
        self._keep = keep
        self._ages = WallClockAge(coordinator.now())
        self._allowed = Allowance()
        # Sizes of logs that no longer change; most are small or 0.
        self._settled: dict[JobId, int] = {}
        self._gone: set[JobId] = set()
        self._ended: dict[JobId, float] = {}  # when archived jobs ended

    async def run(self) -> Never:
        """Sweep periodically, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (LogStoreError, JournalError) as error:
                _log.error("log_retention_failed", why=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Remove the logs that exceed the limits. A job whose logs cannot be read or removed waits
        for the next sweep. Raises LogStoreError and JournalError.
        """
        now = self._coordinator.now()
        self._ages.look(now)
        present = await self._store.in_thread(partial(present_jobs, self._root))
        sizes: dict[JobId, int] = {}
        ended: list[tuple[float, JobId]] = []  # (age in seconds, job)
        jobs = self._coordinator.state.jobs
        unknown = [n for n in present if n not in self._gone and n not in self._ended]
        # Jobs archived during this sweep are examined in the next one.
        elsewhere = [name for name in unknown if name not in jobs]
        archived = await self._coordinator.archive.ended_at(elsewhere)
        self._ended |= {JobId(number): at for number, at in archived.items()}
        for name in elsewhere:
            if name not in archived and self._coordinator.forgot(name):
                with _left_for_later(name):
                    await self._store.forget(name)
        for place, name in enumerate(present):
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be a million jobs
            if name in self._gone or (name not in jobs and name not in self._ended):
                continue
            size = self._settled.get(name)
            if size is None:
                size = await self._store.in_thread(partial(_size, self._root / str(name)))
            if size is None:
                self._gone.add(name)
                continue
            sizes[name] = size
            age = None
            with _left_for_later(name):
                age = await self._settled_for(name)
            if age is not None:
                self._settled[name] = size
                ended.append((age, name))
        total = sum(sizes.values())
        if total <= self._keep.bytes_max:
            ended = [one for one in ended if one[0] > self._keep.age_s]
        allowed = 0
        if self._coordinator.may_remove_by_age():
            allowed = self._allowed.look(now.mono, len(sizes), self._keep.age_s)
        for age, name in sorted(ended, key=lambda one: (-one[0], one[1])):
            if allowed and age > self._keep.age_s:
                allowed -= 1
                self._allowed.take(1)
                why = f"it ended more than {_days(self._keep.age_s)} before (job_logs.keep_s)"
            elif total > self._keep.bytes_max and sizes[name]:
                why = (
                    f"all logs together were more than {self._keep.bytes_max} bytes, and of the "
                    "jobs that have ended, this one ended first (job_logs.keep_bytes_max)"
                )
            else:
                continue
            with _left_for_later(name):
                await self.remove(name, why, sizes[name])
                total -= sizes[name]

    async def remove(self, name: JobId, why: str, size: int) -> None:
        """Remove the logs of a job, `size` bytes. Raises LogStoreError."""
        self._settled.pop(name, None)
        self._ended.pop(name, None)
        await self._store.remove(name, why)
        if size:
            _log.info("logs_removed", job=name, bytes=size, why=why)
        self._gone.add(name)

    async def _settled_for(self, name: JobId) -> float | None:
        """Return the seconds since the job ended, or None if more logs may still arrive."""
        ended_at = self._ended.get(name)
        if ended_at is not None:
            age = self._ages.of(ended_at)
            if name in self._settled or age > _SETTLED_S:
                return age
        job = await self._coordinator.job(name)
        if job is None or job.phase is not JobPhase.ENDED or job.ended_at is None:
            return None
        age = self._ages.of(job.ended_at)
        if age > _SETTLED_S:
            return age
        logs = await self._store.load(name)
        return None if tasks_with_pending_logs(job, logs.stored) else age


@contextlib.contextmanager
def _left_for_later(job: JobId) -> Iterator[None]:
    """Log an error of the log store, so that the logs of one job do not hold up those of others."""
    try:
        yield
    except LogStoreError as error:
        _log.error("log_retention_failed", job=job, why=str(error))


def _size(folder: Path) -> int | None:
    """Return the bytes on disk below a folder. Returns None if only a removal mark is left.

    Files that vanish during the walk count 0.
    """
    with contextlib.suppress(OSError):
        if all(map(is_mark, names := os.listdir(folder))) and names:
            return None
    return bytes_below(folder)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds:g} s"
