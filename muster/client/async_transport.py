"""HTTP requests and line streams over aiohttp, as `muster.client.sync_transport` does them.

Connections are kept, because a program with an event loop makes many calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import aiohttp
import yarl

from muster.client.endpoints import READ_TIMEOUT_S, Call, Query
from muster.client.http_common import (
    BODY_BYTES_MAX,
    CONNECT_TIMEOUT_S,
    PROBLEM_BYTES_MAX,
    HttpContext,
    LineSplitter,
    keep_alive,
    target,
)

_LINE_BUFFER_BYTES: Final = 256 << 10


class AsyncTransport:
    """Sends requests to one coordinator, until `close`."""

    def __init__(self, exchange: HttpContext) -> None:
        self._exchange = exchange
        # Because connections belong to one event loop, keep a session for each. A program may have
        # several loops, in sequence or in threads.
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def request(self, call: Call[Any]) -> bytes:
        address = target(call.path, call.query)
        answer = await self._answer(
            call.method, address, call.body, call.headers, max(call.timeout_s, READ_TIMEOUT_S)
        )
        with _explained(self._exchange):
            async with answer:
                data = await _read(answer, BODY_BYTES_MAX + 1)
        if len(data) > BODY_BYTES_MAX:
            raise self._exchange.too_large()
        return data

    async def lines(
        self, path: str, query: Query, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        answer = await self._answer("GET", target(path, query), None, headers or {}, None)
        lines = LineSplitter(self._exchange.url)
        with _explained(self._exchange):
            # Not `async with`, which would make a reader that stops early read the rest.
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
        body: bytes | bytearray | memoryview | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> aiohttp.ClientResponse:
        exchange = self._exchange
        with _explained(exchange):
            # The headers of a stream arrive at once; after that it may be silent.
            async with asyncio.timeout(READ_TIMEOUT_S if timeout_s is None else None):
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
                    text = await _read(answer, PROBLEM_BYTES_MAX)
                raise exchange.refused(answer.status, answer.reason or "", text)
        return answer

    def _opened_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=self._exchange.tls or True, socket_factory=_socket
                ),
                read_bufsize=_LINE_BUFFER_BYTES,
            )
        return session


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Read at most `most` bytes of the body. Repeats reads, because one may return only a part."""
    data = b""
    while len(data) < most and not answer.content.at_eof():
        data += await answer.content.read(most - len(data))
    return data


@contextlib.contextmanager
def _explained(exchange: HttpContext) -> Iterator[None]:
    """Convert aiohttp's exceptions to client errors."""
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
