"""Limits on connections, above all on unauthenticated ones, which are few and short-lived.

aiohttp waits for a request's head without limit. Here a head must arrive within HEAD_S of the
connection (or of its first byte on a kept connection), and the client must read the answer within
WRITE_S. A connection without a valid token yet is pending. If there are too many, the oldest is
dropped: legitimate clients authenticate well within this limit. If descriptors are scarce, user
streams are refused, and a user's connection is closed after its answer. Connections that would take
the last descriptors are dropped. Answers that wait for slow readers are limited in bytes, by token
and in total: the connection that has waited longest is closed. Nodes that share a join token are
apart by address, and a `BoundedAnswer` waits within the limits of its own route.
"""

import asyncio
from typing import Any, Final

import structlog
from aiohttp import web

from muster.daemon.tls import drop_connection
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.problems import (
    ApiError,
    internal_error,
    new_request_id,
    problem_bytes,
    problem_response,
    unreadable,
)
from orchestrator.core.model.people import KnownToken
from orchestrator.shell.fd_limits import HINT, is_last, is_short, shortage

HEAD_S: Final = 5.0
WRITE_S: Final = 60.0
LINGER_S: Final = 1.0
KEEPALIVE_S: Final = 75.0
HEADERS_MAX: Final = 64
LINE_BYTES_MAX: Final = 8190
HEAD_BYTES_MAX: Final = 32 << 10
"""The bound of a whole head; `muster` sends less than 1 KiB. A part of one is kept in memory."""
ANSWERS_PER_TOKEN_BYTES_MAX: Final = 16 << 20
ANSWERS_BYTES_MAX: Final = 128 << 20
_LOG_EVERY_S: Final = 60.0
_log = structlog.get_logger("muster.http")


class BoundedAnswer(web.StreamResponse):
    """An answer that is sent in small pieces, and of which its route sends few at a time. It has
    `write_s` for each piece, and is not closed for the sake of other answers."""


class ConnectionLimits:
    """All connections of users and agents, and their limits."""

    def __init__(
        self,
        *,
        pending_per_address_max: int,
        per_token_max: int,
        head_s: float = HEAD_S,
        write_s: float = WRITE_S,
        answers_per_token_bytes: int = ANSWERS_PER_TOKEN_BYTES_MAX,
        answers_bytes: int = ANSWERS_BYTES_MAX,
    ) -> None:
        self.head_s = head_s
        self.write_s = write_s
        self._answers_per_token_bytes = answers_per_token_bytes
        self._answers_bytes = answers_bytes
        self._pending_max = pending_per_address_max
        self._per_token_max = per_token_max
        self._pending: dict[str, dict[GuardedConnection, None]] = {}  # by address, oldest first
        self._by_token: dict[str, dict[GuardedConnection, None]] = {}
        self._untaken: dict[GuardedConnection, int] = {}  # bytes of answers, oldest first
        self._logged_short_at = float("-inf")

    def opened(self, connection: "GuardedConnection") -> None:
        pending = self._pending.setdefault(connection.address, {})
        pending[connection] = None
        if len(pending) > self._pending_max:
            oldest = next(iter(pending))
            _log.debug("connection_shed", address=connection.address, pending=len(pending))
            oldest.drop()
        if connection.short:
            self._log_short()
        if is_last(connection.number):
            connection.drop()

    def _log_short(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_short_at >= _LOG_EVERY_S:
            self._logged_short_at = now
            _log.error("descriptors_short", why=shortage(), hint=HINT)

    def authenticated(self, connection: "GuardedConnection", token: KnownToken) -> bool:
        """Record the owner of a connection. Returns False if the owner has too many connections.
        Agents share a token, so they are counted in their sessions instead.
        """
        if connection.token == token.id:
            return True
        self.closed(connection)
        held = self._by_token.get(token.id, {})
        if token.class_ is not TokenClass.JOIN and len(held) >= self._per_token_max:
            return False
        self._by_token.setdefault(token.id, {})[connection] = None
        connection.token = token.id
        join = token.class_ is TokenClass.JOIN
        connection.reader = f"{token.id} {connection.address}" if join else token.id
        return True

    def waits(self, connection: "GuardedConnection", size: int) -> None:
        """Record that `size` bytes of an answer wait for their reader."""
        self._untaken.setdefault(connection, size)
        of_token = [one for one in self._untaken if one.reader == connection.reader]
        self._shed(of_token, self._answers_per_token_bytes)
        self._shed(list(self._untaken), self._answers_bytes)

    def _shed(self, waiting: "list[GuardedConnection]", most: int) -> None:
        held = sum(self._untaken[one] for one in waiting)
        for oldest in waiting[:-1]:
            if held <= most:
                return
            held -= self._untaken[oldest]
            _log.info("answer_not_taken", remote=oldest.address, bytes=self._untaken[oldest])
            oldest.drop()
            self.taken(oldest)

    def taken(self, connection: "GuardedConnection") -> None:
        """Record that the answer has been read, or that its reader has gone."""
        self._untaken.pop(connection, None)

    def closed(self, connection: "GuardedConnection") -> None:
        _discard(self._pending, connection.address, connection)
        _discard(self._by_token, connection.token, connection)


def _discard(
    groups: "dict[str, dict[GuardedConnection, None]]", name: str, connection: "GuardedConnection"
) -> None:
    group = groups.get(name)
    if group is not None and connection in group:
        del group[connection]
        if not group:
            del groups[name]


def no_descriptors() -> ApiError:
    return ApiError(
        503,
        "no_descriptors",
        shortage() or "the coordinator was recently short of file descriptors",
        HINT,
        headers={"Retry-After": "5", "Connection": "close"},
    )


class GuardedConnection(web.RequestHandler):
    """A connection of a client. The middleware reports the start and the end of each request."""

    __slots__ = (
        "_busy",
        "_connections",
        "_deadline",
        "_head_bytes",
        "_heard",
        "_lingers",
        "_parsed",
        "_served",
        "address",
        "bounded",
        "number",
        "patient",
        "reader",
        "short",
        "token",
    )

    def __init__(self, connections: ConnectionLimits, manager: web.Server) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,  # type: ignore[arg-type]
            max_headers=HEADERS_MAX,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,
        )
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._busy = False
        self._served = False
        self._heard = False
        self._head_bytes = 0  # of the incomplete head
        self._parsed = False  # a first head was complete
        self._lingers = False
        self.patient = False  # a stream: its reader may be slow
        self.bounded = False  # a BoundedAnswer
        self.reader = ""  # to whom unread answers count
        self.address = ""
        self.token = ""
        self.number = -1
        self.short = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        sock = transport.get_extra_info("socket")
        self.number = -1 if sock is None else sock.fileno()
        self.short = is_short(self.number)
        self._arm(self._connections.head_s, self._head_is_late)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        self._connections.closed(self)
        self._connections.taken(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        self._heard = self._heard or bool(data)
        if data and not self._busy and self._deadline is None:
            self._arm(self._connections.head_s, self._head_is_late)
        super().data_received(data)
        if self._messages:
            self._parsed, self._head_bytes = True, 0
        elif not self._busy and (self._waiter is not None or not self._parsed):
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                _log.info("head_too_large", remote=self.address)
                self.drop()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.patient:
            self._arm(self._connections.write_s, self._answer_is_not_taken)
            if not self.bounded and isinstance(self.transport, asyncio.WriteTransport):
                self._connections.waits(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.taken(self)
        self._disarm()

    def request_began(self) -> None:
        self._busy = self._served = True
        self.patient = self.bounded = False
        self._disarm()

    def request_ended(self) -> None:
        self._busy = False

    def authenticated(self, token: KnownToken) -> None:
        """Record the owner. Raises ApiError (429) if the owner has too many connections."""
        if not self._connections.authenticated(self, token):
            raise ApiError(
                429,
                "too_many_connections",
                "this token has reached its limit of connections",
                "close some, or use one connection for several requests",
                headers={"Retry-After": "5", "Connection": "close"},
            )

    def refuse_stream(self) -> None:
        """Raise ApiError (503) if descriptors are too scarce for a long-lived response."""
        if self.short:
            raise no_descriptors()

    def drop(self) -> None:
        """Close the connection at once, without an answer."""
        self._disarm()
        drop_connection(self.transport)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what was sent
    ) -> web.StreamResponse:
        """Answer a request that aiohttp's parser refuses; no middleware sees it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status >= 500:
            _log.error("request_failed", remote=self.address, exc_info=exc)
        problem = unreadable(exc) if status < 500 else internal_error()
        _log.info("request_unreadable", remote=self.address, status=problem.status)
        response = problem_response(problem, new_request_id())
        response.force_close()
        return response

    def _arm(self, after_s: float, then: Any) -> None:
        self._disarm()
        self._deadline = asyncio.get_running_loop().call_later(after_s, then)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self._busy or self.writing_paused or self._messages:
            # The head may have been completed in this very iteration of the loop.
            return
        if self._waiter is None:
            # aiohttp has a whole request, and has not called the middleware yet.
            self._arm(self._connections.head_s, self._head_is_late)
            return
        _log.debug("head_late", remote=self.address)
        if self._heard and not self._served and isinstance(self.transport, asyncio.Transport):
            self.transport.write(
                problem_bytes(
                    ApiError(
                        408,
                        "request_timeout",
                        f"the request's head was not complete after {self._connections.head_s:g} s",
                        "send it in one piece",
                    )
                )
            )
            if self.transport.can_write_eof():
                # To a client that still sends, a close is a reset, which loses the answer.
                self.transport.write_eof()
                self._lingers = True
                self._arm(LINGER_S, self.drop)
                return
        self.force_close()

    def _answer_is_not_taken(self) -> None:
        self._deadline = None
        _log.info("answer_not_taken", remote=self.address, seconds=self._connections.write_s)
        self.drop()
