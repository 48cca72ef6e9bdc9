"""Counters of changes, so that readers wait for a change without polling.

A reader takes the counter, reads the data, and waits for the counter to move. No change in between
is missed.
"""

import asyncio
from collections.abc import Hashable, Iterable


class ChangeCounters:
    """Counters that only grow, and the readers that wait for one to move.

    A key that was never bumped counts 0 and uses no memory.
    """

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if the process is stopping. If so, `wait` returns at once; do not repeat it."""
        return self._closed

    def count(self, key: Hashable) -> int:
        return self._counts.get(key, 0)

    def bump(self, keys: Iterable[Hashable]) -> None:
        """Wake the readers of `keys`. Call it after the change is visible."""
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
            for future in self._waiting.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Forget `keys`, which will never be bumped again, and wake their readers."""
        for key in keys:
            if self._counts.pop(key, None) is not None and key in self._waiting:
                self.bump([key])
                del self._counts[key]

    async def wait(self, seen: dict[Hashable, int], timeout_s: float | None = None) -> None:
        """Return when any key's counter differs from `seen`, after `timeout_s`, or once closed."""
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
        """Wake all readers; later waits return at once."""
        self._closed = True
        self.bump(list(self._waiting))
