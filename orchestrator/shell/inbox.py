"""Bounded queue of inputs that await a decision, in order, each with its time of arrival."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.daemon.clock import Clock
from muster.protocol.instant import Instant
from orchestrator.core.facts.inputs import Input, SubmitReceived

WAITING_MAX: Final = 4096
# Bounds a batch, so that a burst delays an answer by one step only.
BATCH_MAX: Final = 512
# A batch is one transaction. With one more job of 512 KiB it stays below the smallest disk reserve.
SUBMIT_BYTES_MAX: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Received:
    given: Input
    at: Instant


class Inbox:
    """Queue with one reader. Senders wait while it is full, except those that use `put_now`."""

    def __init__(self, clock: Clock, waiting_max: int = WAITING_MAX) -> None:
        self._clock = clock
        self._max = waiting_max
        self._items: deque[Received] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._filled = asyncio.Event()

    async def put(self, given: Input) -> None:
        """Add an input, after waiting for room."""
        while len(self._items) >= self._max:
            self._room.clear()
            await self._room.wait()
        self.put_now(given)

    def put_now(self, given: Input) -> None:
        """Add an input at once. For inputs that occur at most once per connection or timer."""
        self._items.append(Received(given, self._clock.now()))
        self._filled.set()

    def wake(self) -> None:
        """Let `take` return, even with an empty batch."""
        self._filled.set()

    def pick(self, wanted: Callable[[Input], bool]) -> list[Received]:
        """Remove and return the matching inputs, in order; the others stay."""
        waiting = list(self._items)
        picked: list[Received] = []
        self._items.clear()
        for received in waiting:
            (picked if wanted(received.given) else self._items).append(received)
        self._room.set()
        return picked

    async def take(self) -> list[Received]:
        """Wait for inputs and return up to BATCH_MAX of them.

        The submit that reaches SUBMIT_BYTES_MAX ends the batch. The batch is empty only after
        `wake` or `pick`.
        """
        await self._filled.wait()
        items = self._items
        batch: list[Received] = []
        size = 0
        while items and len(batch) < BATCH_MAX and size < SUBMIT_BYTES_MAX:
            received = items.popleft()
            batch.append(received)
            size += submit_bytes(received.given)
        if not items:
            self._filled.clear()
        self._room.set()
        return batch


def submit_bytes(given: Input) -> int:
    """Return the bytes that a submit takes in the journal, 0 for other inputs."""
    return given.size if isinstance(given, SubmitReceived) else 0
