"""HTTP requests and line streams over the standard library's client.

A command makes one or two calls, so every call has its own connection: threads share nothing, and
no kept connection can be dead. docs/decisions/0004 says why this is not aiohttp.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

from muster.client.endpoints import READ_TIMEOUT_S, Call, Query
from muster.client.errors import ClientError
from muster.client.http_common import (
    BODY_BYTES_MAX,
    CONNECT_TIMEOUT_S,
    PROBLEM_BYTES_MAX,
    HttpContext,
    LineSplitter,
    keep_alive,
    target,
)

_READ_BYTES: Final = 256 << 10


class Transport:
    """Sends requests to one coordinator. Thread-safe."""

    def __init__(self, exchange: HttpContext) -> None:
        self.exchange = exchange

    def close(self) -> None:
        """Do nothing, because no connection is kept."""

    def request(self, call: Call[Any]) -> bytes:
        """Return the body of a good answer. Raises ApiError, UnreachableError, BadAnswerError."""
        with self._answer(
            call.method, target(call.path, call.query), call.body, call.headers, call.timeout_s
        ) as answer:
            data = self._read(answer, BODY_BYTES_MAX + 1)
        if len(data) > BODY_BYTES_MAX:
            raise self.exchange.too_large()
        return data

    def lines(
        self, path: str, query: Query, headers: Mapping[str, str] | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the lines of an answer as they arrive, without line ends.

        A line that a cut connection left unfinished is not yielded. Raises as `request`.
        """
        lines = LineSplitter(self.exchange.url)
        with self._answer("GET", target(path, query), None, headers or {}, None) as answer:
            while data := answer.read1(_READ_BYTES):
                yield from lines.take(data)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        address: str,
        body: bytes | bytearray | memoryview | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        exchange = self.exchange
        connection = self._connection()
        sent = exchange.headers(body, headers) | {"Connection": "close"}
        try:
            connection.connect()
            sock = connection.sock
            keep_alive(sock)
            sock.settimeout(READ_TIMEOUT_S)
            connection.request(method, address, body, sent)
            if timeout_s is not None and timeout_s > READ_TIMEOUT_S:
                sock.settimeout(timeout_s)
            answer = connection.getresponse()
            if timeout_s is None:
                sock.settimeout(None)  # a stream begins at once, and may be silent then
            exchange.note(answer.headers["Date"], answer.headers["Server"])
            if not 200 <= answer.status < 300:
                text = self._read(answer, PROBLEM_BYTES_MAX)
                raise exchange.refused(answer.status, answer.reason, text)
            yield answer
        except ClientError:
            raise
        except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
            raise exchange.closed() from error
        except http.client.HTTPException as error:
            raise exchange.not_http() from error
        except OSError as error:
            raise exchange.explain(error) from error
        finally:
            connection.close()

    def _read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        """Read at most `most` bytes of the body. Raises UnreachableError if the body was cut off,
        which the standard library does not report for a body with a known length."""
        data = answer.read(most)
        if answer.length and len(data) < most:
            raise self.exchange.closed()
        return data

    def _connection(self) -> http.client.HTTPConnection:
        parts, tls = self.exchange.parts, self.exchange.tls
        host = parts.hostname or ""
        if tls is not None:
            return http.client.HTTPSConnection(
                host, parts.port, timeout=CONNECT_TIMEOUT_S, context=tls
            )
        return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S)
