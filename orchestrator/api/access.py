"""Who may call what: every route says it, and what does not say it is closed."""

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Never, assert_never

import structlog
from aiohttp import web

from muster.protocol.tokens import TokenClass, TokenRecord
from orchestrator.api.problems import ApiError
from orchestrator.api.token_file import TokenStore

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN: Final = web.RequestKey("token", TokenRecord)
_LOOK_EVERY_S: Final = 1.0

_log = structlog.get_logger("muster.tokens")


class Access(enum.Enum):
    """OPEN: without a token. ADMIN, JOIN: with a token of that class and no other."""

    OPEN = "open"
    ADMIN = "admin"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    access: Access


class AccessTable:
    """The access of each registered (method, path pattern)."""

    def __init__(self, routes: list[Route], tokens: TokenStore) -> None:
        self._access = {(route.method, route.path): route.access for route in routes}
        self._tokens = tokens

    def check(self, request: web.Request) -> None:
        """Let the request pass, with its token at `TOKEN`. Raises ApiError (401, 403).

        A path that does not exist is closed like any other: who may not ask does not learn what
        there is.
        """
        resource = request.match_info.route.resource
        needed = Access.ADMIN
        if resource is not None:
            needed = self._access.get((request.method, resource.canonical), Access.ADMIN)
        if needed is Access.OPEN:
            return
        record = self._tokens.find(_bearer(request))
        if record is None:
            raise _unauthorized(
                "the token is missing, wrong or revoked",
                "send the header `Authorization: Bearer muster_...`",
            )
        why = self._tokens.why_not(record)
        if why:
            raise _unauthorized(why, "ask whoever runs the coordinator for a new one")
        match needed:
            case Access.ADMIN:
                class_ = TokenClass.ADMIN
            case Access.JOIN:
                class_ = TokenClass.JOIN
            case _:
                assert_never(needed)
        if record.class_ is not class_:
            raise ApiError(
                403,
                "forbidden",
                f"a token of class {record.class_.value} does not open this",
                f"use a token of class {class_.value}",
            )
        request[TOKEN] = record


class OpenRequests:
    """Who is being answered: a stream is cut when its token is good no longer.

    The connection of an agent outlives the expiry of its token, as cutting it would in the end cut
    its jobs; it opens no other one, and it ends when the token is revoked.
    """

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._open: dict[int, tuple[web.Request, TokenRecord]] = {}
        self._told: set[str] = set()

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        record = request.get(TOKEN)
        if record is not None:
            self._open[id(request)] = (request, record)
        try:
            yield
        finally:
            self._open.pop(id(request), None)

    async def watch(self) -> Never:
        """Look at all of them every second: time passes, and nobody says so."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for request, record in list(self._open.values()):
                why = self._tokens.why_not(record)
                if why:
                    self._end(request, record, why)

    def _end(self, request: web.Request, record: TokenRecord, why: str) -> None:
        if record.class_ is TokenClass.JOIN and self._tokens.knows(record):
            if record.id not in self._told:
                self._told.add(record.id)
                _log.warning(
                    "join_token_expired",
                    token_id=record.id,
                    why=f"{why}; agents that use it stay connected, and are not let in again: give "
                    "each a new token_file",
                )
            return
        self._open.pop(id(request), None)
        _log.warning("stream_cut", path=request.path, remote=request.remote, why=why)
        if request.transport is not None:
            request.transport.close()


def _unauthorized(detail: str, hint: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, "unauthorized", detail, hint, headers=headers)


def _bearer(request: web.Request) -> str:
    headers = request.headers.getall("Authorization", [])
    if len(headers) != 1:
        return ""
    scheme, _, token = headers[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
