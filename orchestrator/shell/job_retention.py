"""Retention of ended jobs: by age and by number together, the oldest first."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final, Never

import structlog

from orchestrator.core.storage.removal import Allowance
from orchestrator.journal.archive import Ended
from orchestrator.journal.errors import JournalError, JournalWriteError
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.wall_clock_age import WallClockAge

SWEEP_EVERY_S: Final = 60.0
_LOOKED_AT: Final = 256
# Bounds how long other writes wait for one deletion.
_AT_ONCE: Final = 8
_PAUSE_S: Final = 0.02

_log = structlog.get_logger("muster.archive")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits: keep at most `jobs_max` jobs, and only those that ended at most `age_s` ago."""

    age_s: float
    jobs_max: int


class JobRetention:
    """Removes jobs from the archive that are too old or too many."""

    def __init__(self, coordinator: Coordinator, keep: RetentionPolicy) -> None:
        self._coordinator = coordinator
        self._keep = keep
        self._ages = WallClockAge(coordinator.now())
        self._allowed = Allowance()
        self._doubt = ""

    async def run(self) -> Never:
        """Sweep periodically, until cancelled. Raises JournalWriteError."""
        while True:
            try:
                await self.sweep()
            except JournalWriteError:
                raise
            except JournalError as error:
                # The journal cannot be read now, for example because no descriptor is free.
                _log.error("forgetting_failed", why=str(error), again_in_s=SWEEP_EVERY_S)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> int:
        """Remove the jobs that exceed the limits, and return how many.

        Stops at a page of jobs that all stay, because all others ended later. While the clock is in
        doubt, or not confirmed yet, nothing is removed for its age. The number removed at once is
        limited.
        """
        archive, ages = self._coordinator.archive, self._ages
        now = self._coordinator.now()
        ages.look(now)
        total, age_s = archive.ended.total(), self._keep.age_s
        self._log_doubt()
        allowed = 0
        if self._coordinator.may_remove_by_age():
            allowed = self._allowed.look(now.mono, total, age_s)
        excess = total - self._keep.jobs_max
        after, gone = Ended(-math.inf, 0), 0
        while rows := await archive.oldest(after, _LOOKED_AT):
            going = []
            for place, ended in enumerate(rows):
                if place < excess - gone:
                    going.append(ended.job)
                elif allowed and ages.of(ended.at) > age_s:
                    going.append(ended.job)
                    allowed -= 1
                    self._allowed.take(1)
            if not going:
                break
            for first in range(0, len(going), _AT_ONCE):
                if not await archive.forget(going[first : first + _AT_ONCE]):
                    return gone  # there is no room to write that down: later
                gone += len(going[first : first + _AT_ONCE])
                await asyncio.sleep(_PAUSE_S)
            after = rows[-1]
        if gone:
            _log.info("jobs_forgotten", jobs=gone, last=archive.forgotten_to)
        return gone

    def _log_doubt(self) -> None:
        """Log once when the wall clock begins or ceases to seem wrong."""
        doubt = self._coordinator.clock_doubt()
        if doubt and not self._doubt:
            _log.warning(
                "clock_in_doubt",
                why=doubt,
                hint="retention by age is suspended: set the time",
            )
        elif self._doubt and not doubt:
            _log.info("clock_no_longer_in_doubt")
        self._doubt = doubt
