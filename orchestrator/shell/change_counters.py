"""Waiting for something to change, without polling: a counter for each thing that can.

A reader takes the counter, reads what it wants to know, and waits for the counter to move: nothing
that happens in between is missed.
"""

import asyncio
from collections.abc import Hashable, Iterable


class ChangeCounters:
    """Counters that only grow, and those who wait for one to move.

    A key nobody bumped counts 0 and costs nothing.
    """

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the process is stopping: a wait returns at once, and is not to be repeated."""
        return self._closed

    def count(self, key: Hashable) -> int:
        return self._counts.get(key, 0)

    def bump(self, keys: Iterable[Hashable]) -> None:
        """Everything about `keys` that was to be seen has changed already."""
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
            for future in self._waiting.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Nobody bumps `keys` any more: nothing is kept of them, and those who wait may look."""
        for key in keys:
            if self._counts.pop(key, None) is not None and key in self._waiting:
                self.bump([key])
                del self._counts[key]

    async def wait(self, seen: dict[Hashable, int], timeout_s: float | None = None) -> None:
        """Return when the counter of any key is not the one seen, after `timeout_s`, or closed."""
        if self._closed or any(self.count(key) != count for key, count in seen.items()):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in seen:
            self._waiting.setdefault(key, set()).add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            for key in seen:
                waiting = self._waiting.get(key)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._waiting[key]

    def close(self) -> None:
        """Let everybody go, now and from now on."""
        self._closed = True
        self.bump(list(self._waiting))
