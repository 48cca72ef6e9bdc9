"""A model of the time limit of a shim, which counts on the clock of its machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.core.shim_protocol import ShimLimit, ShimPhase

if TYPE_CHECKING:
    from tests.simulation.shim import Shim


class TimeLimit:
    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self.newest: ShimLimit | None = None
        self.warned_s: float | None = None

    def change(self, limit: ShimLimit) -> None:
        self._shim.truth.limited(self._shim, limit)
        if self.newest is None or self.newest.number < limit.number:
            self.newest = limit
            self.follow()

    def follow(self) -> None:
        """The program runs, or its limit has changed. The warning comes first if both are due."""
        shim, limit = self._shim, self.newest
        if limit is None or shim.started_at is None:
            return
        for after_s, act in ((limit.warn_s, self._near), (limit.limit_s, self._over)):
            if after_s is not None:
                due = shim.started_at + after_s / shim.clock_rate
                shim.world.at(max(0.0, due - shim.world.now), partial(act, limit))

    def is_overdue(self) -> bool:
        """True if the ranks should have been warned, and were not."""
        shim, limit = self._shim, self.newest
        if limit is None or limit.warn_s is None or shim.started_at is None:
            return False
        due = shim.started_at + limit.warn_s / shim.clock_rate
        return self.warned_s is None and shim.world.now > due

    def _near(self, limit: ShimLimit) -> None:
        assert limit.warn_s is not None
        is_new = self.warned_s is None or self.warned_s < limit.warn_s
        if self._counts(limit) and is_new:
            self.warned_s = limit.warn_s
            self._shim.truth.limit_near(self._shim, limit)
            self._shim.changed(self._shim)

    def _over(self, limit: ShimLimit) -> None:
        if self._counts(limit):
            self._shim.truth.limit_over(self._shim, limit)
            self._shim.limit_over()

    def _counts(self, limit: ShimLimit) -> bool:
        runs = not self._shim.dead and self._shim.phase is ShimPhase.RUNNING
        return runs and limit is self.newest
