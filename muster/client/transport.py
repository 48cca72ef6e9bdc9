"""One HTTP request, or one stream of lines, over the standard library's client.

A command makes one or two calls and is over, so every call has a connection of its own: nothing
is shared between threads, and no kept connection can turn out to be dead. docs/decisions/0004 says
why this is not aiohttp.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec

from muster.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    SettingsError,
    UnreachableError,
)
from muster.client.settings import check_url
from muster.protocol.http import Problem

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
_BODY_BYTES_MAX: Final = 256 << 20
_LINE_BYTES_MAX: Final = 8 << 20
_READ_BYTES: Final = 256 << 10

# A stream may be silent for hours, so only the kernel can tell that the other end has gone.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

Query = Mapping[str, str | int | float | None]


class Transport:
    """Speaks to one coordinator. Safe to use from several threads.

    `server_time` is the coordinator's clock at its last answer, None before.
    """

    def __init__(self, url: str, token: str, ca: Path | None = None) -> None:
        self._url = check_url(url)
        self.url = url.rstrip("/")
        self._token = token
        self._tls = _trust(ca) if self._url.scheme == "https" else None
        self.server_time: datetime | None = None

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> bytes:
        """The body of a good answer. Raises ApiError, UnreachableError, BadAnswerError."""
        with self._answer(method, path, query, body, headers, timeout_s) as answer:
            data = answer.read(_BODY_BYTES_MAX + 1)
        if len(data) > _BODY_BYTES_MAX:
            raise BadAnswerError(f"the answer of {self.url} is larger than {_BODY_BYTES_MAX} bytes")
        return data

    def lines(self, path: str, query: Query) -> Iterator[bytes]:
        """The lines of an answer as they come, without their end.

        A line that a cut connection left unfinished is not yielded. Raises as `request`.
        """
        with self._answer("GET", path, query, None, None, None) as answer:
            rest = b""
            while data := answer.read1(_READ_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                yield from whole
                if len(rest) > _LINE_BYTES_MAX:
                    raise BadAnswerError(
                        f"{self.url} sent a line of more than {_LINE_BYTES_MAX} bytes"
                    )

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.connect()
            for level, option, value in _KEEPALIVE:
                connection.sock.setsockopt(level, option, value)
            connection.sock.settimeout(READ_TIMEOUT_S)
            connection.request(method, _target(path, query), body, self._headers(body, headers))
            if timeout_s is None or timeout_s > READ_TIMEOUT_S:
                connection.sock.settimeout(timeout_s)
            answer = connection.getresponse()
            self._note_time(answer)
            if not 200 <= answer.status < 300:
                raise ApiError(_problem(answer))
            yield answer
        except ClientError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(
                host, self._url.port, timeout=CONNECT_TIMEOUT_S, context=self._tls
            )
        return http.client.HTTPConnection(host, self._url.port, timeout=CONNECT_TIMEOUT_S)

    def _headers(self, body: bytes | None, extra: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers | dict(extra or {})

    def _note_time(self, answer: http.client.HTTPResponse) -> None:
        with contextlib.suppress(ValueError, TypeError):
            self.server_time = parsedate_to_datetime(answer.headers["Date"])

    def _explain(self, error: Exception) -> ClientError:
        """What went wrong on the way, as a sentence; `from error` keeps the origin."""
        where = f"the coordinator at {self.url}"
        match error:
            case ConnectionRefusedError():
                return UnreachableError(
                    self.url,
                    f"{where} does not answer: nothing listens there",
                    "start it with `muster coordinator`, or say where it is: --url or MUSTER_URL",
                )
            case socket.gaierror():
                return UnreachableError(
                    self.url,
                    f"{where} is not found: {error.strerror}",
                    "check the host name in --url, MUSTER_URL or the client's file",
                    passing=error.errno == socket.EAI_AGAIN,
                )
            case ssl.SSLCertVerificationError():
                return UnreachableError(
                    self.url,
                    f"{where} shows a certificate that is not trusted: {error.verify_message}",
                    "name the CA that signed it: `ca` in the client's file, or MUSTER_CA",
                    passing=False,
                )
            case ssl.SSLError() if not isinstance(error, ssl.SSLEOFError):
                return UnreachableError(
                    self.url,
                    f"{where} does not speak TLS as we do: {error.reason or error}",
                    "check http:// or https://, and the port",
                    passing=False,
                )
            case TimeoutError():
                return UnreachableError(
                    self.url,
                    f"{where} does not answer in time",
                    "check the network between, and whether the coordinator is busy",
                )
            case http.client.RemoteDisconnected() | http.client.IncompleteRead():
                return UnreachableError(self.url, f"{where} closed the connection", _TRY_AGAIN)
            case http.client.HTTPException():
                return BadAnswerError(
                    f"what answers at {self.url} is no coordinator: it does not speak HTTP",
                    "check the port, and http:// or https://",
                )
            case _:
                said = error.strerror if isinstance(error, OSError) else None
                return UnreachableError(
                    self.url, f"{where} cannot be reached: {said or error}", _TRY_AGAIN
                )


_TRY_AGAIN: Final = "try again; `journalctl -u muster-coordinator` says what happened there"


def _trust(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # SSLError is one
        raise SettingsError(
            f"the CA file {ca} cannot be used: {error.strerror or error}",
            "it must hold certificates in PEM",
        ) from error


def _target(path: str, query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _problem(answer: http.client.HTTPResponse) -> Problem:
    body = answer.read(1 << 20)
    try:
        return msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Not of our making: a proxy, or another service on that port.
        return Problem(
            type="about:blank",
            title=answer.reason,
            status=answer.status,
            code="not_a_problem",
            detail=f"the answer was {answer.status} {answer.reason}, and not from a coordinator",
            hint="check the address and port in --url or MUSTER_URL",
        )
