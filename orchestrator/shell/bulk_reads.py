"""Bulk reads of users, such as logs and events, in a few threads that nothing durable waits for.

A read is a sequence of short slices. Users take turns, slice by slice, however many readers each
of them has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from orchestrator.shell.request_turns import UserTurns

_T = TypeVar("_T")
# Python runs one thread at a time: a third one would only delay the loop.
_THREADS: Final = 2


class BulkReads:
    """The threads, and the readers that wait for their turn, by user."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._free = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="bulk-reads")
        self._turns = UserTurns()

    async def slice(self, user: str, call: Callable[[], _T]) -> _T:
        """Run one slice of a user's read in a thread, when it is that user's turn."""
        async with self.turn(user):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of `user`, for a read that has threads of its own."""
        await self._take(user)
        try:
            yield
        finally:
            self._give()

    def waiting(self, user: str) -> int:
        """Return the number of this user's slices that wait for their turn."""
        return self._turns.waiting(user)

    def close(self) -> None:
        """Drop the slices that have not begun. Safe to call twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self, user: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = self._turns.add(user)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give()
            raise

    def _give(self) -> None:
        if not self._turns.wake_next():
            self._free += 1
