"""Code that both transports share: addresses, headers, decoding of answers, and error messages."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from muster.client.config import Settings, check_url
from muster.client.endpoints import Call, Query
from muster.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    SettingsError,
    UnreachableError,
)
from muster.http.views import Problem
from muster.protocol.tls_errors import certificate_hint

_T = TypeVar("_T")

CONNECT_TIMEOUT_S: Final = 5.0
BODY_BYTES_MAX: Final = 256 << 20
PROBLEM_BYTES_MAX: Final = 1 << 20
_LINE_BYTES_MAX: Final = 8 << 20

# Because a stream may be silent for hours, only the kernel can detect a dead peer.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_TRY_AGAIN: Final = "try again; see `journalctl -u muster-coordinator` there"
_SERVER: Final = "muster/"


def keep_alive(sock: socket.socket) -> None:
    """Enable TCP keepalive, so that the kernel detects a dead peer."""
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


class HttpContext:
    """The coordinator that `settings` describe, for building requests and decoding answers.

    `server_time` is the coordinator's clock at its last answer (None before), `server_version` its
    version.
    """

    def __init__(self, settings: Settings) -> None:
        self.parts = check_url(settings.url)
        self.url = settings.url.rstrip("/")
        self.tls = _trust(settings.ca) if self.parts.scheme == "https" else None
        self.server_time: datetime | None = None
        self.server_version = ""
        self._settings = settings

    def headers(
        self, body: bytes | bytearray | memoryview | None, extra: Mapping[str, str]
    ) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._settings.token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return headers | dict(extra)

    def note(self, date: str | None, server: str | None) -> None:
        """Record the coordinator's time and version from an answer's headers."""
        with contextlib.suppress(ValueError):
            self.server_time = parsedate_to_datetime(date or "")
        server = server or ""
        if server.startswith(_SERVER):
            self.server_version = server.removeprefix(_SERVER)

    def decode(self, call: Call[_T], body: bytes) -> _T:
        """Decode the answer to `call`. Raises BadAnswerError."""
        try:
            return msgspec.json.decode(body, type=call.kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError(
                f"the answer of {self.url} to {call.method} {call.path} cannot be read: {error}",
                "compare `muster version` on both sides",
            ) from error

    def refused(self, status: int, reason: str, body: bytes) -> ApiError:
        """Convert an error answer to an ApiError."""
        try:
            problem = msgspec.json.decode(body, type=Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Not from a coordinator: a proxy, or another service on that port.
            problem = Problem(
                type="about:blank",
                title=reason,
                status=status,
                code="not_a_problem",
                detail=f"the answer was {status} {reason}, not from a coordinator",
                hint=f"check the address and port, and correct them {self._where_from}",
            )
        hint = self._better_hint(problem)
        return ApiError(msgspec.structs.replace(problem, hint=hint) if hint else problem)

    def _better_hint(self, problem: Problem) -> str:
        """Return a hint with what the coordinator cannot know: the token's source, or a version
        mismatch."""
        origin = self._settings.token_from
        if problem.status == 401 and origin:
            return f"your token is from {origin}; {self.url} does not accept it"
        if problem.status == 403 and origin:
            return f"{problem.hint}; your token is from {origin}".lstrip("; ")
        if problem.code in {"no_such_route", "method_not_allowed"}:
            return (
                f"the coordinator{f' ({self.server_version})' if self.server_version else ''} "
                "does not know this request: compare `muster version` on both sides"
            )
        return ""

    def too_large(self) -> BadAnswerError:
        return BadAnswerError(f"the answer of {self.url} is larger than {BODY_BYTES_MAX} bytes")

    def closed(self) -> UnreachableError:
        """Return the error for a connection that ended before the answer did."""
        return UnreachableError(self.url, f"{self._coordinator} closed the connection", _TRY_AGAIN)

    def not_http(self) -> BadAnswerError:
        return BadAnswerError(
            f"the server at {self.url} is not a coordinator: it does not speak HTTP",
            f"check the port, and http:// or https://; set it {self._where_from}",
        )

    def explain(self, error: Exception) -> ClientError:
        """Convert a connection error to a client error with a message."""
        said = self._coordinator
        match error:
            case ConnectionRefusedError():
                return UnreachableError(
                    self.url,
                    f"{said} does not answer: nothing listens there",
                    "its admin starts it with `systemctl start muster-coordinator`; or set another "
                    f"address {self._where_from}",
                )
            case socket.gaierror():
                return UnreachableError(
                    self.url,
                    f"{said} is not found: {error.strerror}",
                    f"check the host name; set it {self._where_from}",
                    passing=error.errno == socket.EAI_AGAIN,
                )
            case ssl.SSLCertVerificationError():
                return UnreachableError(
                    self.url,
                    f"{said} shows a certificate that is not trusted: {error.verify_message}",
                    certificate_hint(
                        error.verify_code,
                        "name the CA that signed it: `ca` in the client's file, or MUSTER_CA",
                    ),
                    passing=False,
                )
            case ssl.SSLError() if not isinstance(error, ssl.SSLEOFError):
                return UnreachableError(
                    self.url,
                    f"{said} has an incompatible TLS configuration: {error.reason or error}",
                    f"check http:// or https://, and the port; set it {self._where_from}",
                    passing=False,
                )
            case TimeoutError():
                return UnreachableError(
                    self.url,
                    f"{said} does not answer in time",
                    "check the network between, and whether the coordinator is busy",
                )
            case _:
                why = error.strerror if isinstance(error, OSError) else None
                text = f"{said} cannot be reached: {why or error}"
                return UnreachableError(self.url, text, _TRY_AGAIN)

    @property
    def _coordinator(self) -> str:
        return f"the coordinator at {self.url}"

    @property
    def _where_from(self) -> str:
        origin = self._settings.url_from
        ways = "with --url, MUSTER_URL, or `url` in the file that --config names"
        from_ = "" if origin.startswith("the default") else "from "
        return f"{ways}; this address is {from_}{origin}" if origin else ways


class LineSplitter:
    """Assembles the lines of a stream; a line that was cut off is never returned."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rest = b""

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines completed by `data`, without line ends. Raises BadAnswerError."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES_MAX:
            raise BadAnswerError(f"{self._url} sent a line of more than {_LINE_BYTES_MAX} bytes")
        return whole


def target(path: str, query: Query) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _trust(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # SSLError is one
        raise SettingsError(
            f"the CA file {ca} cannot be used: {error.strerror or error}",
            "it must hold certificates in PEM",
        ) from error
