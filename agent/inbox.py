"""The one queue in front of the owner of the agent's state: all that happens, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from agent.core.stimuli import Stimulus

# Far more than a turn ever leaves behind; whoever can wait does so above it.
_CROWDED: Final = 1000


class Inbox:
    """Stimuli in the order in which they were posted; one reader, the owner."""

    def __init__(self) -> None:
        self._items: deque[Stimulus | asyncio.Event] = deque()
        self._filled = asyncio.Event()

    def post(self, stimulus: Stimulus) -> None:
        """Never waits and never loses: what happened, happened."""
        self._items.append(stimulus)
        self._filled.set()

    def wake(self) -> None:
        """Let `wait` return although nothing was posted."""
        self._filled.set()

    async def settled(self) -> None:
        """Wait until everything posted so far has been answered by the owner."""
        mark = asyncio.Event()
        self._items.append(mark)
        self._filled.set()
        await mark.wait()

    async def room(self) -> None:
        """Wait where the owner is far behind: a peer that floods us is slowed, not stored."""
        if len(self._items) > _CROWDED:
            await self.settled()

    async def wait(self) -> None:
        """For the owner: sleep until there is something to take, or `wake` is called."""
        await self._filled.wait()

    def take(self) -> Stimulus | None:
        """For the owner: the next stimulus; None where there is none."""
        while self._items:
            item = self._items.popleft()
            if not isinstance(item, asyncio.Event):
                return item
            # All that was posted before this mark has been answered by now.
            item.set()
        self._filled.clear()
        return None
