"""Rate limits for what agents cause: reports, pings, pongs and messages of an unknown type on a
websocket, and lines of the log.

Such frames are so small that a limit of bytes does not stop a flood of them, and the loop handles
each.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from muster.protocol.link.codec import ProtocolError

AT_ONCE: Final = 500
EVERY_S: Final = 0.1
REPORTS_AT_ONCE: Final = 2000
REPORTS_PER_S: Final = 200.0
LINES_AT_ONCE: Final = 100
LINES_PER_S: Final = 1.0


class FrameBudget:
    """Allows `AT_ONCE` such frames of a connection, and one more in `EVERY_S` seconds."""

    def __init__(self) -> None:
        self._due = 0.0

    def take(self, now: float) -> None:
        """Count one frame at `now` (monotonic seconds). Raises ProtocolError."""
        self._due = max(self._due, now) + EVERY_S
        if self._due - now > AT_ONCE * EVERY_S:
            raise ProtocolError("too many pings, pongs or messages of an unknown type")

    async def receive(self, socket: web.WebSocketResponse) -> WSMessage:
        """Return the next message that is no ping or pong. Pings are answered.

        The socket's own `autoping` must be off: it answers any number without a pause. Raises
        ProtocolError and ConnectionError.
        """
        loop = asyncio.get_running_loop()
        while True:
            message = await socket.receive()
            if message.type not in (WSMsgType.PING, WSMsgType.PONG):
                return message
            self.take(loop.time())
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)


class ReportPace:
    """Slows a connection that reports without end: `REPORTS_AT_ONCE` at once, and then
    `REPORTS_PER_S`. The reports wait in the socket, so that none is lost.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def take(self, now: float) -> float:
        """Count one report at `now` (monotonic seconds); returns the pause before it in seconds."""
        self._due = max(self._due, now) + 1 / REPORTS_PER_S
        return max(0.0, self._due - now - REPORTS_AT_ONCE / REPORTS_PER_S)


class LineBudget:
    """Log lines about agents that are refused: some at once, and then one each second."""

    def __init__(self) -> None:
        self._left = float(LINES_AT_ONCE)
        self._at = 0.0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """Return how many lines were left out since the last one, or None to leave this one out.
        `now` is in monotonic seconds.
        """
        gained = max(0.0, now - self._at) * LINES_PER_S
        self._left, self._at = min(float(LINES_AT_ONCE), self._left + gained), now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
