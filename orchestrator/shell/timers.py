"""One heap for all of the coordinator's timers, and one loop alarm for its top."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from muster.daemon.clock import Clock
from orchestrator.core.facts.effects import Timer

# The loop sleeps on CLOCK_MONOTONIC, which stops while the machine is suspended. The cores use a
# clock that does not stop, so never sleep long.
_LOOK_AGAIN_S: Final = 30.0
# Stale entries stay in the heap until they surface; beyond this share it is rebuilt.
_STALE_SHARE: Final = 4


class Timers:
    """Named timers. `fired` is called on the loop once for each timer that is due."""

    def __init__(self, clock: Clock, fired: Callable[[Timer], None]) -> None:
        self._clock = clock
        self._fired = fired
        self._at: dict[Timer, float] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._tie = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, timer: Timer, at: float) -> None:
        """Fire `timer` at `at` (the clock's monotonic seconds). Replaces an earlier setting."""
        self._at[timer] = at
        self._tie += 1
        heapq.heappush(self._heap, (at, self._tie, timer))
        if len(self._heap) > 64 and len(self._heap) > _STALE_SHARE * len(self._at):
            self._heap = [(when, tie, t) for when, tie, t in self._heap if self._at.get(t) == when]
            heapq.heapify(self._heap)
        self._arm()

    def close(self) -> None:
        """Cancel all timers."""
        self._at.clear()
        self._heap.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self) -> None:
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
        delay_s = min(max(0.0, top - self._clock.now().mono), _LOOK_AGAIN_S)
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.now().mono
        while self._heap and self._heap[0][0] <= now:
            at, _, timer = heapq.heappop(self._heap)
            if self._at.get(timer) == at:
                del self._at[timer]
                self._fired(timer)
        self._arm()
