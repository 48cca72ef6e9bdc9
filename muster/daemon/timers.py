"""A heap for all timers of a daemon's state, and one alarm of the event loop for its top."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from muster.daemon.clock import Clock

# The loop sleeps on CLOCK_MONOTONIC, which stops while the machine is suspended. The cores use a
# clock that does not stop, so never sleep long.
_LOOK_AGAIN_S: Final = 30.0
# The pause before the alarm rings again for timers that nobody has fired.
_RING_AGAIN_S: Final = 0.01
# Stale entries stay in the heap until they surface; beyond this share it is rebuilt.
_STALE_SHARE: Final = 4

_T = TypeVar("_T")


class Timers(Generic[_T]):
    """Named timers. `fired` is called on the loop once for each timer that is due.

    `ring` is called when one is due and has to lead to `fire_due`, which is the default.
    """

    def __init__(
        self,
        clock: Clock,
        fired: Callable[[_T], None],
        ring: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._fired = fired
        self._on_alarm = ring or self.fire_due
        self._at: dict[_T, float] = {}
        self._heap: list[tuple[float, int, _T]] = []
        self._tie = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, timer: _T, at: float) -> None:
        """Fire `timer` at `at` (the clock's monotonic seconds). Replaces an earlier setting."""
        self._at[timer] = at
        self._tie += 1
        heapq.heappush(self._heap, (at, self._tie, timer))
        if len(self._heap) > 64 and len(self._heap) > _STALE_SHARE * len(self._at):
            self._heap = [(when, tie, t) for when, tie, t in self._heap if self._at.get(t) == when]
            heapq.heapify(self._heap)
        self._arm()

    def fire_due(self) -> None:
        """Fire the timers that are due, in order."""
        now = self._clock.now().mono
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, timer = heapq.heappop(self._heap)
            if self._at.get(timer) == at:
                del self._at[timer]
                due.append(timer)
        for timer in due:
            self._fired(timer)

    def close(self) -> None:
        """Cancel all timers."""
        self._at.clear()
        self._heap.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self, least_s: float = 0.0) -> None:
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        top = self._heap[0][0]
        if self._alarm is not None:
            if self._alarm_at <= top:
                return  # the earlier alarm arms the next one
            self._alarm.cancel()
        self._alarm_at = top
        delay_s = min(max(least_s, top - self._clock.now().mono), _LOOK_AGAIN_S)
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._heap and self._heap[0][0] <= self._clock.now().mono:
            self._on_alarm()
        self._arm(_RING_AGAIN_S)
