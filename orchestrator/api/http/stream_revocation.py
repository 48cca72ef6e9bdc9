"""Revocation of streams: a response is cut when its token is no longer valid, or when its user may
no longer do what the request asked for.
"""

import asyncio
from typing import Final, Never

import structlog
from aiohttp import web

from muster.daemon.errors import DaemonError
from muster.protocol.ids import NodeName
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.access import TOKEN, AccessTable
from orchestrator.api.http.route import ROUTE, Handler
from orchestrator.api.http.tokens import NodeCredential, TokenStore
from orchestrator.core.model.people import KnownToken
from orchestrator.shell.agent_sessions import NODE
from orchestrator.shell.coordinator import CoordinatorStoppedError

_LOOK_EVERY_S: Final = 1.0

_log = structlog.get_logger("muster.tokens")


class StreamRevocation:
    """The open streams, each with its token. A stream is cut when its token becomes invalid, or
    when its rights have gone.

    An agent's connection survives the expiry of its token, because cutting it would in the end stop
    its jobs. The agent cannot reconnect, though, and a revoked token cuts the connection. A node's
    certificate is renewed in time, so its end cuts the connection.
    """

    def __init__(self, tokens: TokenStore, access: AccessTable) -> None:
        self._tokens = tokens
        self._access = access
        self._open: dict[int, tuple[web.Request, KnownToken]] = {}
        self._logged: set[str] = set()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Register the stream. This middleware must run inside the access check."""
        record = request.get(TOKEN)
        if record is not None:
            self._open[id(request)] = (request, record)
        try:
            return await handler(request)
        finally:
            self._open.pop(id(request), None)

    def nodes_with(self, token: str) -> set[NodeName]:
        """Return the nodes whose agents are connected with this join token."""
        return {
            request[NODE]
            for request, record in self._open.values()
            if record.id == token and NODE in request
        }

    async def watch(self) -> Never:
        """Check all streams every second, because tokens expire without an event."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Check all streams once."""
        for request, record in list(self._open.values()):
            why = self._tokens.why_not(record) or await self._denied(request, record)
            if why and id(request) in self._open:
                self._end(request, record, why)

    async def _denied(self, request: web.Request, record: KnownToken) -> str:
        """Return why the rights behind an open request have gone, or ""."""
        if record.class_ is TokenClass.JOIN:
            return ""
        try:
            allowed = await self._access.still_allowed(request, request[ROUTE])
        except CoordinatorStoppedError:
            return ""  # which ends its streams itself
        except DaemonError as error:
            return str(error)
        return "" if allowed else f"{record.user} may not do this any more"

    def _end(self, request: web.Request, record: KnownToken, why: str) -> None:
        token = record.class_ is TokenClass.JOIN and not isinstance(record, NodeCredential)
        if token and self._tokens.knows(record):
            if record.id not in self._logged:
                self._logged.add(record.id)
                _log.warning(
                    "join_token_expired",
                    token_id=record.id,
                    why=f"{why}; agents that use it stay connected, and cannot reconnect: give "
                    "each a new token_file",
                )
            return
        self._open.pop(id(request), None)
        _log.warning("stream_cut", path=request.path, remote=request.remote, why=why)
        if request.transport is not None:
            request.transport.close()
