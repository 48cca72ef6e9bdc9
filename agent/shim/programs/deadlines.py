"""The deadlines of a task: its time limit and its lease.

Both use the clock of `loop.now`. The time limit counts from the start of the program, whatever the
agent and the coordinator do meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.shim.messages import ShimLease, ShimLimit, ShimPhase, ShimSignal, StoppedBy
from agent.shim.programs.rank_signals import RankSignals
from agent.shim.status import Status
from agent.shim.system.event_loop import Loop, now

_LEASE = "lease"
_LIMIT = "limit"
_WARN = "limit-warning"


class TimeLimit:
    """The time limit of one task, with the warning before it. The newest limit counts."""

    def __init__(
        self, loop: Loop, status: Status, signals: RankSignals, stop: Callable[[StoppedBy], None]
    ) -> None:
        """`signals` are for the warnings alone."""
        self._loop = loop
        self._status = status
        self._signals = signals
        self._stop = stop
        self._newest: ShimLimit | None = None
        self._warnings = 0

    def change(self, limit: ShimLimit) -> None:
        """Follow this limit from now on, unless a newer one is known."""
        if self._newest is None or self._newest.number <= limit.number:
            self._newest = limit
            self.follow()

    def follow(self) -> None:
        """Set the timers of a running program. The warning comes first if both are due."""
        self._cancel()
        limit, began = self._newest, self._status.started_at
        if limit is None or began is None or self._status.phase is not ShimPhase.RUNNING:
            return
        warned_s = self._status.warned_s
        if limit.warn_s is not None and (warned_s is None or warned_s < limit.warn_s):
            self._loop.at(_WARN, began + limit.warn_s, self._warn)
        if limit.limit_s is not None:
            self._loop.at(_LIMIT, began + limit.limit_s, self._end)

    def poll_soon(self) -> None:
        """Warn a rank that has just begun, if the others are warned."""
        self._signals.poll_soon()

    def over(self) -> None:
        """Cancel all timers: the task has ended."""
        self._cancel()
        self._signals.over()

    def _cancel(self) -> None:
        self._loop.cancel(_WARN)
        self._loop.cancel(_LIMIT)

    def _warn(self) -> None:
        limit = self._newest
        running = self._status.phase is ShimPhase.RUNNING
        if limit is None or limit.warn_signal is None or not running:
            return
        self._status.warned_s = limit.warn_s
        self._warnings += 1
        self._signals.give(ShimSignal(limit.warn_signal, self._warnings))

    def _end(self) -> None:
        # A stop that has begun for another reason has its own grace.
        if self._status.phase is ShimPhase.RUNNING:
            self._stop(StoppedBy.LIMIT)


class Lease:
    """The lease of one task: the task is stopped when no agent has renewed it in time."""

    def __init__(self, loop: Loop, stop: Callable[[float], None]) -> None:
        """`stop` gets the grace of the last lease."""
        self._loop = loop
        self._stop = stop

    def renew(self, lease: ShimLease) -> None:
        """Follow this lease instead of the last one. One of 0 seconds has no end."""
        if lease.ttl_s == 0:
            self.over()
            return
        ends = now() + lease.ttl_s
        if lease.until is not None:
            ends = min(ends, lease.until)
        self._loop.at(_LEASE, ends, lambda: self._stop(lease.grace_s))

    def over(self) -> None:
        """Cancel the lease: the task has ended."""
        self._loop.cancel(_LEASE)
