"""Turns of requests to webhooks: a server that hangs or is slow delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

PAUSE_MAX_S: Final = 300.0
SLOW_S: Final = 2.0
"""A server that took this long shares the slots of slow ones until it is faster."""
AT_ONCE: Final = 16
SLOW_AT_ONCE: Final = 4
"""Requests of all slow servers together, besides the others."""
AT_ONCE_OF_SERVER: Final = 2
_DOUBLINGS_MAX: Final = 16

ServerName = tuple[str, str, int]


class UnusedTurnError(Exception):
    """Nothing was sent in this turn, so it shows nothing about the server."""


@dataclass(slots=True)
class Server:
    """A server of webhooks: `hangs` is the number of requests without an answer since the last
    answer, and `not_before` (loop time) is when the next request may begin."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_OF_SERVER))
    is_slow: bool = False
    hangs: int = 0
    not_before: float = 0.0

    def answered(self, after_s: float) -> None:
        """Record an answer, or an error that came by itself."""
        self.is_slow = after_s >= SLOW_S
        self.hangs, self.not_before = 0, 0.0

    def hung(self, now: float, pause_s: float) -> None:
        """Record that no answer came: after each, the pause is twice as long."""
        self.is_slow = True
        self.hangs = min(self.hangs + 1, _DOUBLINGS_MAX)
        self.not_before = now + min(PAUSE_MAX_S, pause_s * 2**self.hangs)


class RequestSlots:
    """Limits of the requests at one time. There are as many servers as the operator allows."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._servers: dict[ServerName, Server] = {}
        self._fast = asyncio.Semaphore(AT_ONCE)
        self._slow = asyncio.Semaphore(SLOW_AT_ONCE)

    def server(self, name: ServerName) -> Server:
        return self._servers.setdefault(name, Server())

    @asynccontextmanager
    async def turn(self, name: ServerName) -> AsyncIterator[None]:
        """Wait for a turn of this server. A TimeoutError in the block means that it hangs."""
        server, loop = self.server(name), asyncio.get_running_loop()
        async with server.turns:
            await asyncio.sleep(max(0.0, server.not_before - loop.time()))
            async with self._slow if server.is_slow else self._fast:
                began = loop.time()
                try:
                    yield
                except TimeoutError:
                    server.hung(loop.time(), self._pause_s)
                    raise
                except UnusedTurnError:
                    raise
                except Exception:
                    server.answered(loop.time() - began)
                    raise
                server.answered(loop.time() - began)
