"""Frees space when the log disk runs short, and divides the rest among running jobs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, Never

import structlog

from muster.protocol.ids import JobId
from orchestrator.core.model.job import JobPhase
from orchestrator.core.storage.log_space import JobUse, low_mark, plan
from orchestrator.journal.errors import JournalError
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.layout import bytes_below, files_below, present_jobs
from orchestrator.shell.logs.space import FILES_MIN, Space
from orchestrator.shell.logs.stream_file import LogStoreError
from orchestrator.shell.wall_clock_age import WallClockAge

_EVERY_S: Final = 1.0
_WALKS_APART: Final = 10  # pause after a walk of all folders, as a multiple of its duration
_SIZE_KNOWN_S: Final = 3600.0
_LARGEST: Final = 5
_LOOK_S: Final = 60.0

_log = structlog.get_logger("muster.logs")

Remove = Callable[[JobId, str, int], Awaitable[None]]


class MakeRoom:
    """Decides about every second while the store is short; idle otherwise."""

    def __init__(self, root: Path, space: Space, coordinator: Coordinator, remove: Remove) -> None:
        self._root = root
        self._space = space
        self._coordinator = coordinator
        self._remove = remove
        # Sizes of logs that no longer change.
        self._sizes: dict[JobId, int] = {}
        self._logged: frozenset[JobId] | None = None
        self._ages = WallClockAge(coordinator.now())
        self._stuck: set[JobId] = set()  # their logs could not be removed
        self._failure = ""

    async def run(self) -> Never:
        """Free space whenever the store is short, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._ages.look(self._coordinator.now())
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._space.short.wait()
            except TimeoutError:
                continue
            began = loop.time()
            try:
                await self.make()
                self._failure = ""
            except (LogStoreError, JournalError, OSError) as error:
                if str(error) != self._failure:
                    self._failure = str(error)
                    _log.error("log_room_failed", why=self._failure)
            await asyncio.sleep(max(_EVERY_S, _WALKS_APART * (loop.time() - began)))

    async def make(self) -> None:
        """Decide once. Raises LogStoreError, JournalError and OSError."""
        space = self._space
        free, by_files = await asyncio.to_thread(space.room)
        if free >= low_mark(space.free_min):
            self._recovered(free)
            return
        space.is_short = True
        jobs = await self._uses(by_files=by_files)
        decided = plan(jobs, free, space.free_min)
        if decided.share is not None:
            space.share = decided.share
        space.waiting = frozenset(
            use.job for use in jobs if use.ended_at is None and use.used > space.share
        )
        self._report(free, jobs, by_files=by_files)
        while decided.remove:
            removed = await self._remove_logs(jobs, decided.remove, by_files=by_files)
            if len(removed) == len(decided.remove):
                break
            # Logs that could not be removed free no space, so plan again without them.
            jobs = [use for use in jobs if use.job not in decided.remove]
            free, _ = await asyncio.to_thread(space.room)
            decided = plan(jobs, free, space.free_min)

    async def _remove_logs(
        self, jobs: list[JobUse], names: tuple[JobId, ...], *, by_files: bool
    ) -> list[JobId]:
        """Remove the logs of these jobs. Return the ones that could be removed."""
        sizes = {use.job: use.used for use in jobs}
        low = f"{low_mark(self._space.free_min)} bytes"
        if by_files:
            low = f"{2 * FILES_MIN} inodes"
        why = (
            f"less than {low} were free on the disk of the logs, "
            "and of the jobs that have ended, this one ended first (job_logs.free_bytes_min)"
        )
        removed = []
        for name in names:
            self._sizes.pop(name, None)
            try:
                await self._remove(name, why, sizes[name])
            except (LogStoreError, OSError) as error:
                if name not in self._stuck:
                    self._stuck.add(name)
                    _log.error("log_room_failed", job=name, why=str(error))
            else:
                self._stuck.discard(name)
                removed.append(name)
        return removed

    def _recovered(self, free: int) -> None:
        space = self._space
        space.short.clear()
        space.is_short, space.share, space.waiting = False, space.free_min, frozenset()
        self._stuck.clear()
        if self._logged is not None:
            self._logged = None
            _log.info("log_store_has_room", free_bytes=free)

    def _report(self, free: int, jobs: list[JobUse], *, by_files: bool) -> None:
        """Log the largest jobs when the store runs short, and when the waiting jobs change."""
        if self._space.waiting == self._logged:
            return
        self._logged = self._space.waiting
        largest = sorted(jobs, key=lambda use: -use.used)[:_LARGEST]
        _log.error(
            "log_store_short",
            lacks="inodes" if by_files else "bytes",
            free_bytes=free,
            low_bytes=low_mark(self._space.free_min),
            share_bytes=self._space.share,
            waiting_jobs=sorted(self._space.waiting),
            largest=[
                {"job": use.job, "bytes": use.used, "ended": use.ended_at is not None}
                for use in largest
            ],
        )

    async def _uses(self, *, by_files: bool) -> list[JobUse]:
        """Return the usage of jobs that have logs. Folders of unknown jobs are ignored."""
        present = await asyncio.to_thread(present_jobs, self._root)
        jobs = self._coordinator.state.jobs
        archived = await self._coordinator.archive.ended_at([n for n in present if n not in jobs])
        ended: dict[JobId, float | None] = {JobId(n): at for n, at in archived.items()}
        for name in present:
            job = jobs.get(name)
            if job is not None:
                ended[name] = job.ended_at if job.phase is JobPhase.ENDED else None
        now = self._coordinator.now()
        self._ages.look(now)
        # With a wrong clock, the date would make the newest logs the oldest.
        ended = {n: None if at is None else now.wall - self._ages.of(at) for n, at in ended.items()}
        if by_files:
            counts = await asyncio.to_thread(self._count, list(ended))
            return [JobUse(n, counts[n] * self._space.file_bytes, at) for n, at in ended.items()]
        unsized = [name for name in ended if name not in self._sizes]
        sizes = await asyncio.to_thread(self._measure, unsized)
        for name, size in sizes.items():
            at = ended[name]
            if at is not None and now.wall - at > _SIZE_KNOWN_S:
                self._sizes[name] = size
        return [JobUse(n, sizes.get(n, self._sizes.get(n, 0)), at) for n, at in ended.items()]

    def _measure(self, jobs: Iterable[JobId]) -> dict[JobId, int]:
        return {name: bytes_below(self._root / str(name)) for name in jobs}

    def _count(self, jobs: Iterable[JobId]) -> dict[JobId, int]:
        return {name: files_below(self._root / str(name)) for name in jobs}
