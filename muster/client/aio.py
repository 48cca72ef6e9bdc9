"""The client for programs that have an event loop. Only importing this imports aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
import yarl

from muster.client import calls
from muster.client.calls import CHANGE_S, READ_TIMEOUT_S, WATCH_S, Call, Query, Steps
from muster.client.errors import ClientError
from muster.client.event_feed import EventFeed
from muster.client.exchange import (
    BODY_BYTES_MAX,
    CONNECT_TIMEOUT_S,
    PROBLEM_BYTES_MAX,
    Exchange,
    Lines,
    keep_alive,
    target,
)
from muster.client.feed import Feed
from muster.client.patience import OnTrouble, Patience
from muster.client.settings import Settings, given_settings
from muster.client.tail import LogQuery, Tail
from muster.protocol.http import (
    CancelAnswer,
    ChangeAnswer,
    EventList,
    EventView,
    Explanation,
    JobList,
    JobSummary,
    JobView,
    LogRecord,
    LogTrailer,
    NodeList,
    NodeView,
    SignalAnswer,
    Validation,
    VersionView,
)
from muster.protocol.states import JobState

_T = TypeVar("_T")
_LINE_BUFFER_BYTES: Final = 256 << 10


class AsyncClient:
    """As `Client`, to be awaited: `async with AsyncClient() as client: await client.job(42)`.

    Connections are kept and shared by calls that run at once; `close` ends them. A call that is
    cancelled is over at once.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        ca: Path | None = None,
        *,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._begin(given_settings(os.environ, url, token, ca), on_trouble)

    @classmethod
    def of(cls, settings: Settings, on_trouble: OnTrouble | None = None) -> Self:
        """The client that `settings` describe."""
        client = cls.__new__(cls)
        client._begin(settings, on_trouble)
        return client

    def _begin(self, settings: Settings, on_trouble: OnTrouble | None) -> None:
        self._exchange = Exchange(settings)
        self._transport = _AsyncTransport(self._exchange)
        self._patience = Patience(on_trouble)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client may be used again."""
        await self._transport.close()

    @property
    def url(self) -> str:
        """Where the coordinator is."""
        return self._exchange.url

    @property
    def server_time(self) -> datetime | None:
        """The coordinator's clock at its last answer."""
        return self._exchange.server_time

    async def submit(self, job: Mapping[str, Any], key: str | None = None) -> JobSummary:
        """As `Client.submit`."""
        return await self._call(calls.submit(job, key or os.urandom(16).hex()))

    async def validate(self, job: Mapping[str, Any]) -> Validation:
        """As `Client.validate`."""
        return await self._call(calls.validate(job))

    async def job(self, job: int) -> JobView:
        """As `Client.job`."""
        return await self._call(calls.job(job))

    async def find_job(self, name: str) -> int:
        """As `Client.find_job`."""
        return await self._run(calls.find_job(name))

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        pool: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobList:
        """As `Client.jobs`."""
        return await self._call(calls.jobs(states, user, pool, name, limit, cursor))

    async def all_jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        pool: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> JobList:
        """As `Client.all_jobs`."""
        return await self._run(calls.all_jobs(states, user, pool, name, limit))

    async def wait(self, job: int, timeout_s: float | None = None) -> JobSummary:
        """As `Client.wait`."""
        return await self._run(calls.wait(job, timeout_s))

    async def cancel(
        self,
        job: int,
        *,
        reason: str = "",
        grace_s: float | None = None,
        force: bool = False,
    ) -> CancelAnswer:
        """As `Client.cancel`."""
        return await self._call(calls.cancel(job, reason, grace_s, force=force))

    async def change(self, job: int, wanted: Mapping[str, Any]) -> ChangeAnswer:
        """As `Client.change`."""
        return await self._call(calls.change(job, wanted))

    async def explain(self, job: int) -> Explanation:
        """As `Client.explain`."""
        return await self._call(calls.explain(job))

    async def signal(
        self, job: int, signal: str, *, rank: int | None = None, node: str | None = None
    ) -> SignalAnswer:
        """As `Client.signal`."""
        return await self._call(calls.signal(job, signal, rank, node))

    async def rerun(
        self,
        job: int,
        key: str | None = None,
        *,
        sets: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> JobSummary:
        """As `Client.rerun`."""
        return await self._call(calls.rerun(job, key or os.urandom(16).hex(), sets, exclude))

    async def events(self, job: int, after: int = 0) -> EventList:
        """As `Client.events`."""
        return await self._call(calls.events(job, after))

    def follow_events(self, job: int | None = None, after: int = 0) -> AsyncIterator[EventView]:
        """As `Client.follow_events`."""
        path = "/v1/events" if job is None else f"/v1/jobs/{job}/events"
        return self._read(EventFeed(after), path, WATCH_S)

    async def nodes(self) -> NodeList:
        """As `Client.nodes`."""
        return await self._call(calls.nodes())

    async def node(self, name: str) -> NodeView:
        """As `Client.node`."""
        return await self._run(calls.node(name))

    async def version(self) -> VersionView:
        """As `Client.version`."""
        return await self._call(calls.version())

    def logs(
        self, job: int, query: LogQuery | None = None
    ) -> AsyncIterator[LogRecord | LogTrailer]:
        """As `Client.logs`."""
        wanted = query or LogQuery()
        patience_s = WATCH_S if wanted.follow else CHANGE_S
        return self._read(Tail(wanted), f"/v1/jobs/{job}/logs", patience_s)

    async def _read(self, feed: Feed[_T], path: str, patience_s: float) -> AsyncGenerator[_T, None]:
        while True:
            lines = self._opened(feed, path, patience_s)
            # Closed here and now also where the reader stops early: not when garbage is collected.
            async with contextlib.aclosing(_found(lines, feed)) as found:
                async for item in found:
                    yield item
            if feed.over:
                return
            await asyncio.sleep(feed.pause_s())

    async def _opened(
        self, feed: Feed[_T], path: str, patience_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Lines of a stream, the first of which was waited for with patience."""
        query = feed.parameters()

        async def connect() -> tuple[bytes, AsyncGenerator[bytes, None]]:
            lines = self._transport.lines(path, query)
            first = await anext(lines, None)
            if first is None:
                raise feed.nothing()
            return first, lines

        first, rest = await self._persist(connect, patience_s)
        async with contextlib.aclosing(rest):
            yield first
            async for line in rest:
                yield line

    async def _run(self, steps: Steps[_T]) -> _T:
        """Make the calls of a procedure, and return what it does."""
        try:
            call = next(steps)
            while True:
                call = steps.send(await self._call(call))
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _call(self, call: Call[_T]) -> _T:
        # A coroutine function, and not a lambda, of which tenacity would not await the result.
        async def step() -> bytes:
            return await self._transport.request(call)

        patience_s = call.patience_s
        body = await (step() if patience_s is None else self._persist(step, patience_s))
        return self._exchange.decode(call, body)

    async def _persist(self, step: Callable[[], Coroutine[Any, Any, _T]], patience_s: float) -> _T:
        """Do `step` again while it fails in passing, for `patience_s` seconds."""
        try:
            result = await step()
        except ClientError as error:
            rules = self._patience.rules(error, patience_s)
            import tenacity

            result = await tenacity.AsyncRetrying(**rules)(step)
        self._patience.reached = True
        return result


async def _found(lines: AsyncGenerator[bytes, None], feed: Feed[_T]) -> AsyncGenerator[_T, None]:
    """What one connection brings; that it was cut is for `feed` to judge."""
    opened = False
    try:
        async with contextlib.aclosing(lines):
            async for line in lines:
                opened = True
                item = feed.take(line)
                if item is not None:
                    yield item
                if feed.over:
                    return
    except ClientError as error:
        if not opened or not error.passing:
            raise


class _AsyncTransport:
    """As `muster.client.transport.Transport`, over aiohttp."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(self, call: Call[Any]) -> bytes:
        address = target(call.path, call.query)
        answer = await self._answer(
            call.method, address, call.body, call.headers, max(call.timeout_s, READ_TIMEOUT_S)
        )
        with _explained(self._exchange):
            async with answer:
                data = await answer.content.read(BODY_BYTES_MAX + 1)
                while len(data) <= BODY_BYTES_MAX and not answer.content.at_eof():
                    data += await answer.content.read(BODY_BYTES_MAX + 1 - len(data))
        if len(data) > BODY_BYTES_MAX:
            raise self._exchange.too_large()
        return data

    async def lines(
        self, path: str, query: Query, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        answer = await self._answer("GET", target(path, query), None, headers or {}, None)
        lines = Lines(self._exchange.url)
        with _explained(self._exchange):
            # Not `async with`: a reader that stops early must not be made to read the rest.
            try:
                async for data in answer.content.iter_any():
                    for line in lines.take(data):
                        yield line
            finally:
                answer.close()

    async def _answer(
        self,
        method: str,
        address: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> aiohttp.ClientResponse:
        exchange = self._exchange
        with _explained(exchange):
            answer = await self._opened_session().request(
                method,
                yarl.URL(exchange.url + address, encoded=True),
                data=body,
                headers=exchange.headers(body, headers),
                allow_redirects=False,  # the token goes to this coordinator and nowhere else
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s
                ),
            )
            exchange.note(answer.headers.get("Date"), answer.headers.get("Server"))
            if not 200 <= answer.status < 300:
                async with answer:
                    text = await answer.content.read(PROBLEM_BYTES_MAX)
                raise exchange.refused(answer.status, answer.reason or "", text)
        return answer

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=self._exchange.tls or True, socket_factory=_socket
                ),
                read_bufsize=_LINE_BUFFER_BYTES,
            )
        return self._session


@contextlib.contextmanager
def _explained(exchange: Exchange) -> Iterator[None]:
    """What aiohttp raises inside, as our errors."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise exchange.explain(error.certificate_error) from error
    except aiohttp.ClientConnectorError as error:
        raise exchange.explain(error.os_error) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError) as error:
        raise exchange.closed() from error
    except aiohttp.ClientResponseError as error:
        raise exchange.not_http() from error
    except OSError as error:  # a TimeoutError is one
        raise exchange.explain(error) from error
    except aiohttp.ClientError as error:
        raise exchange.closed() from error


def _socket(address: Any) -> socket.socket:
    made = socket.socket(address[0], address[1], address[2])
    keep_alive(made)
    return made
