"""How long logs are kept: by age and by size together, the oldest ended jobs first.

The logs of a job that has not ended are never touched, nor those of one that ended within the last
hour as long as a node may still deliver some.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import structlog

from muster.protocol.ids import JobId
from muster.protocol.states import TaskState
from orchestrator.core.job import JobPhase
from orchestrator.core.state import Job
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream import LogStoreError

SWEEP_EVERY_S: Final = 60.0
_SETTLED_S: Final = 3600.0

_log = structlog.get_logger("muster.logs")


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept: logs of jobs that ended at most `age_s` ago, `bytes_max` in all."""

    age_s: float
    bytes_max: int


class Retention:
    """Removes what is too old or too much."""

    def __init__(self, root: Path, store: LogStore, coordinator: Coordinator, keep: Keep) -> None:
        self._root = root
        self._store = store
        self._coordinator = coordinator
        self._keep = keep
        # Sizes of logs that do not change any more; of most jobs they are small or nothing.
        self._settled: dict[JobId, int] = {}
        self._gone: set[JobId] = set()

    async def run(self) -> Never:
        """Sweep from time to time, until cancelled."""
        while True:
            try:
                await self.sweep()
            except LogStoreError as error:
                _log.error("log_retention_failed", why=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Remove what is to go by now. Raises LogStoreError."""
        now = self._coordinator.now().wall
        present = await asyncio.to_thread(_present, self._root)
        sizes: dict[JobId, int] = {}
        ended: list[tuple[float, JobId]] = []
        for name in present:
            job = self._coordinator.state.jobs.get(name)
            if name in self._gone or job is None:
                continue
            over = job.phase is JobPhase.ENDED and job.ended_at is not None
            size = self._settled.get(name)
            if size is None:
                size = await asyncio.to_thread(_size, self._root / str(name))
            sizes[name] = size
            if over and job.ended_at is not None and self._is_settled(job, now):
                self._settled[name] = size
                ended.append((job.ended_at, name))
        total = sum(sizes.values())
        for ended_at, name in sorted(ended):
            if now - ended_at > self._keep.age_s:
                why = f"it ended more than {_days(self._keep.age_s)} before (job_logs.keep_s)"
            elif total > self._keep.bytes_max and sizes[name]:
                why = (
                    f"all logs together were more than {self._keep.bytes_max} bytes, and its were "
                    "the oldest (job_logs.keep_bytes_max)"
                )
            else:
                continue
            total -= sizes[name]
            await self._remove(name, why, sizes[name])

    async def _remove(self, name: JobId, why: str, size: int) -> None:
        self._settled.pop(name, None)
        await self._store.remove(name, why)
        if size:
            _log.info("logs_removed", job=name, bytes=size, why=why)
        self._gone.add(name)

    def _is_settled(self, job: Job, now: float) -> bool:
        """Whether nothing more will come of it, as far as can be told."""
        if job.ended_at is None or now - job.ended_at > _SETTLED_S:
            return True
        stored = self._store.job(job.id).stored
        return all(
            task.state is TaskState.LOST or (attempt.number, task.rank) in stored
            for attempt in job.attempts
            for task in attempt.tasks
        )


def _present(root: Path) -> list[JobId]:
    """The jobs that have a folder."""
    try:
        with os.scandir(root) as entries:
            return [JobId(int(entry.name)) for entry in entries if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogStoreError(f"{root} cannot be read: {error.strerror}") from error


def _size(folder: Path) -> int:
    """Bytes on disk of everything below; what vanishes meanwhile counts nothing."""
    total = 0
    for above, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(above, name), follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total


def _days(seconds: float) -> str:
    return f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds:g} s"
