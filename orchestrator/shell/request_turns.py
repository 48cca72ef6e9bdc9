"""Turns of requests on the event loop, so that many at once do not hold up the agents' messages.

A thousand requests may arrive at one moment, and each computes its answer on the loop. Run one
after the other in the same iteration they would delay everything else by the sum of their times.
"""

import asyncio
import time
from collections import OrderedDict, deque
from typing import Final

_READERS_S: Final = 0.02


class UserTurns:
    """The waiting requests, by user. The user whose last turn is longest ago is next."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def add(self, user: str) -> asyncio.Future[None]:
        """Return a future that `wake_next` resolves when it is this user's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        return turn

    def wake_next(self) -> bool:
        """Wake the next request that still waits. Returns False if there is none."""
        while self._waiting:
            user, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[user] = turns
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    def waiting(self, user: str) -> int:
        """Return the number of this user's requests that wait."""
        return len(self._waiting.get(user, ()))


class RequestTurns:
    """Lets one request begin in each iteration of the loop. Users take turns."""

    def __init__(self) -> None:
        self._turns = UserTurns()
        self._taken = False

    async def take(self, user: str) -> None:
        """Wait for this user's turn, which is now if no other request began in this iteration."""
        if self._taken:
            await self._turns.add(user)
            return
        self._taken = True
        asyncio.get_running_loop().call_soon(self._iteration)

    def _iteration(self) -> None:
        if self._turns.wake_next():
            asyncio.get_running_loop().call_soon(self._iteration)
        else:
            self._taken = False


class CommitReaders:
    """Requests that wait until the state is on disk."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the end of a step. Raises what `fail` was given."""
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(reader)
        await reader

    async def wake(self) -> bool:
        """Wake the readers, one in each iteration of the loop, for some milliseconds.

        Returns True if time was short. The others are woken at the end of the next step.
        """
        until = time.perf_counter() + _READERS_S
        # Requests that arrive during this step wait for a step of their own.
        for _ in range(len(self._waiting)):
            reader = self._waiting.popleft()
            if not reader.done():
                reader.set_result(None)
                await asyncio.sleep(0)
            if time.perf_counter() >= until:
                return bool(self._waiting)
        await asyncio.sleep(0)
        return False

    def fail(self, error: Exception) -> None:
        """Raise `error` in all who wait."""
        for reader in self._waiting:
            if not reader.done():
                reader.set_exception(error)
