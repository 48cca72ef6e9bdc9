"""What has happened and has not been judged yet: bounded, in order, each with its moment."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.daemon.clock import Clock
from muster.protocol.instant import Instant
from orchestrator.core.facts.inputs import Input

WAITING_MAX: Final = 4096
# One step judges at most this many, so that a burst delays an answer by one step and not by all.
BATCH_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Received:
    given: Input
    at: Instant


class Inbox:
    """A queue with one reader. Whoever brings too much waits; what must not wait does not."""

    def __init__(self, clock: Clock, waiting_max: int = WAITING_MAX) -> None:
        self._clock = clock
        self._max = waiting_max
        self._items: deque[Received] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._filled = asyncio.Event()

    async def put(self, given: Input) -> None:
        """Add it, after waiting for room."""
        while len(self._items) >= self._max:
            self._room.clear()
            await self._room.wait()
        self.put_now(given)

    def put_now(self, given: Input) -> None:
        """Add it at once: for what comes at most once a connection or a timer."""
        self._items.append(Received(given, self._clock.now()))
        self._filled.set()

    def wake(self) -> None:
        """Let `take` return, if need be with nothing."""
        self._filled.set()

    def pick(self, wanted: Callable[[Input], bool]) -> list[Received]:
        """Take what is wanted, in order, from among the others, which stay."""
        waiting = list(self._items)
        picked: list[Received] = []
        self._items.clear()
        for received in waiting:
            (picked if wanted(received.given) else self._items).append(received)
        self._room.set()
        return picked

    async def take(self) -> list[Received]:
        """Wait for something, and take what there is, up to BATCH_MAX; empty only after `wake`
        or `pick`."""
        await self._filled.wait()
        items = self._items
        batch = [items.popleft() for _ in range(min(len(items), BATCH_MAX))]
        if not items:
            self._filled.clear()
        self._room.set()
        return batch
