"""A bound of websocket frames that tell nothing: pings, pongs and messages of an unknown type.

They are small, so a bound of bytes stops nobody: a few connections that sent nothing but pings held
the loop for seconds.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from muster.protocol.codec import ProtocolError

AT_ONCE: Final = 500
EVERY_S: Final = 0.1


class FrameBudget:
    """The frames of one connection that tell nothing: `AT_ONCE`, and one more in `EVERY_S`."""

    def __init__(self) -> None:
        self._due = 0.0

    def take(self, now: float) -> None:
        """Count one frame at `now` (monotonic seconds). Raises ProtocolError."""
        self._due = max(self._due, now) + EVERY_S
        if self._due - now > AT_ONCE * EVERY_S:
            raise ProtocolError("too many frames that tell nothing: pings, or unknown messages")

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
