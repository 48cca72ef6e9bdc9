"""Limits on the connections of the server for code, so that no process of the network can take the
agent's descriptors.

A connection is pending until its request is known to come from a node of a gang. That takes such a
node a moment, so the oldest pending connection is dropped if there are too many, and each after
`ask_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web


class ConnectionBounds(NamedTuple):
    """Bounds of the connections to this node. A node of a gang asks 16 others at a time, so about
    as many ask it. `pending`: connections without a valid request; `pending_of_address`: the same
    of an address; `ask_s`: the time for a request; `answers`: answers at once; `answer_s`: the time
    of one, which is about 16 MiB at most, at 64 KiB/s and with the wait for content."""

    pending: int = 256
    pending_of_address: int = 64
    ask_s: float = 10.0
    answers: int = 256
    answer_s: float = 300.0


class CodeServer(web.Server):
    """A server whose connections are few and have deadlines; each has one valid request."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: ConnectionBounds,
    ) -> None:
        super().__init__(handler, handler_cancellation=True, access_log=None)
        self._bounds = bounds
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._pending: dict[web.RequestHandler, str] = {}  # their addresses, the oldest first

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        address = str((transport.get_extra_info("peername") or ("",))[0])
        self._transports[handler] = transport
        self._pending[handler] = address
        self._set_deadline(handler, self._bounds.ask_s)
        of_address = [one for one, its in self._pending.items() if its == address]
        if len(of_address) > self._bounds.pending_of_address:
            self._drop(of_address[0])
        elif len(self._pending) > self._bounds.pending:
            self._drop(next(iter(self._pending)))

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._pending.pop(handler, None)
        self._transports.pop(handler, None)
        if (deadline := self._deadlines.pop(handler, None)) is not None:
            deadline.cancel()

    def known(self, request: web.BaseRequest) -> None:
        """Note that a request comes from a node of a gang: its answer has time."""
        if self._pending.pop(request.protocol, None) is not None:
            self._set_deadline(request.protocol, self._bounds.answer_s)

    def _set_deadline(self, handler: web.RequestHandler, after_s: float) -> None:
        if (old := self._deadlines.pop(handler, None)) is not None:
            old.cancel()
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(after_s, self._drop, handler)

    def _drop(self, handler: web.RequestHandler) -> None:
        self._pending.pop(handler, None)
        if (transport := self._transports.get(handler)) is not None:
            transport.abort()
