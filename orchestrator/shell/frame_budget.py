"""A rate limit for pings, pongs and messages of an unknown type on one websocket.

They are so small that a limit of bytes does not stop a flood of them, and the loop handles each.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from muster.protocol.link.codec import ProtocolError

AT_ONCE: Final = 500
EVERY_S: Final = 0.1


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
