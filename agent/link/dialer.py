"""Dialing the coordinator: address, token, socket options, and retries."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Never, Self

import aiohttp
import msgspec
import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_fixed,
    wait_random,
    wait_random_exponential,
)

from muster.daemon.durable_files import FileVersion
from muster.daemon.errors import ConfigError, TlsError
from muster.daemon.resolver import ThreadedResolver
from muster.daemon.tls import client_context, version_of
from muster.protocol.certificate_refusals import HEADER, REPLACED, WAITS
from muster.protocol.tls_errors import certificate_hint
from muster.protocol.tokens import BadToken, parse

# Full jitter, because all agents lose their coordinator at the same instant.
_PAUSE: Final = wait_random_exponential(multiplier=0.1, max=5.0)
# The machine answers but the port is closed: the coordinator is restarting. Frequent retries are
# cheap and soon successful.
_PAUSE_ABSENT: Final = wait_random_exponential(multiplier=0.1, max=0.4)
_ABSENT_S: Final = 5.0
# A refusal needs a changed setting, so frequent retries would only fill logs.
_PAUSE_REFUSED: Final = wait_fixed(30.0) + wait_random(0.0, 5.0)
_PAUSE_FIRST_S: Final = 0.1
# A node that waits for an operator dials as often as the coordinator asks, and spread out.
_WAITS_S: Final = 5.0
_WAITS_MOST_S: Final = 300.0
_WAITS_SPREAD: Final = 0.6
_HANDSHAKE_S: Final = 10.0
_CLOSE_S: Final = 0.5
_READ_S: Final = 60.0
_WHY_CHARS_MAX: Final = 500
# The kernel's own timeout for a dead peer is about a quarter of an hour.
_USER_TIMEOUT_MS: Final = 20_000
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 2),
)
_TOKEN_BYTES_MAX: Final = 4096
# Failures repeat: after the first, log one of this many.
_LOG_EVERY: Final = 20

_log = structlog.get_logger("agent.link.dialer")

Websocket = aiohttp.ClientWebSocketResponse
Converse = Callable[[Websocket], Awaitable[str]]


class ConnectionLostError(Exception):
    """A connection that failed. `refused` means that the peer requires an operator's action;
    `absent` that its port is closed. `waits_s`, if not 0, is the pause after which the peer asks
    for the next dial. `replaced`: a later certificate of this node is in use.
    """

    def __init__(
        self,
        why: str,
        *,
        refused: bool = False,
        absent: bool = False,
        waits_s: float = 0.0,
        replaced: bool = False,
    ) -> None:
        super().__init__(why)
        self.refused = refused
        self.absent = absent
        self.waits_s = waits_s
        self.replaced = replaced


class Dialer:
    """Opens websockets to the coordinator. Use it as an async context manager."""

    def __init__(
        self,
        coordinator: str,
        token_file: Path | None,
        tls_ca: Path | None,
        certificate: Path | None = None,
    ) -> None:
        """`coordinator` is its http(s) URL. With a certificate of its own, the node shows no token.
        Raises ConfigError and TlsError.
        """
        if token_file is None and certificate is None:
            raise ConfigError(
                "neither certificate nor token_file is set: run `muster join` on this node, or "
                "name a file with a join token of the coordinator"
            )
        self._url = coordinator.rstrip("/")
        self._token_file = token_file
        self._tls_ca = tls_ca
        self._certificate = certificate
        self.replaced = asyncio.Event()
        """Set when the coordinator refuses the certificate because a later one is in use."""
        self._versions: tuple[FileVersion | None, ...] = ()
        self._tls: ssl.SSLContext | None = None
        if coordinator.startswith("https:"):
            self._trust()
        self._session: aiohttp.ClientSession | None = None
        self._credentials()

    async def __aenter__(self) -> Self:
        # Resolve the name for each dial, because a coordinator may move.
        connector = aiohttp.TCPConnector(resolver=ThreadedResolver(), use_dns_cache=False, limit=0)
        # No answer is unpacked: a few bytes of it could fill the memory.
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"Accept-Encoding": "identity"}, auto_decompress=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def dial(
        self, path: str, frame_bytes_max: int, silence_s: float | None = None
    ) -> Websocket:
        """Open a websocket. With `silence_s` it fails if nothing is received for that time despite
        pings. Raises ConnectionLostError with a message for users.
        """
        assert self._session is not None, "the dialer is not open"
        try:
            if self._tls is not None:
                self._trust()
            async with asyncio.timeout(_HANDSHAKE_S):
                websocket = await self._session.ws_connect(
                    self._url + path,
                    headers=self._credentials(),
                    ssl=self._tls if self._tls is not None else True,
                    max_msg_size=frame_bytes_max,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                    # A ping after that time, and half of it again for the answer.
                    heartbeat=None if silence_s is None else silence_s / 1.5,
                )
        except (aiohttp.ClientError, OSError, TimeoutError, ConfigError, TlsError) as error:
            lost = _explain(self._url, error)
            if lost.replaced:
                self.replaced.set()
            raise lost from error
        _tune(websocket)
        return websocket

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        bytes_max: int,
    ) -> bytes:
        """Return the body of a good answer to a request. Raises ConnectionLostError, `refused` if
        the coordinator understood the request and declined it.
        """
        assert self._session is not None, "the dialer is not open"
        parts: list[bytes] = []
        try:
            if self._tls is not None:
                self._trust()
            async with self._session.request(
                method,
                self._url + path,
                data=body,
                headers={**self._credentials(), **headers},
                ssl=self._tls if self._tls is not None else True,
                timeout=aiohttp.ClientTimeout(total=None, connect=_HANDSHAKE_S, sock_read=_READ_S),
                allow_redirects=False,
            ) as answer:
                async for part in answer.content.iter_any():
                    parts.append(part)
                    bytes_max -= len(part)
                    if bytes_max < 0:
                        raise ConnectionLostError(f"{self._url} sent too much", refused=True)
        except (aiohttp.ClientError, OSError, TimeoutError, ConfigError, TlsError) as error:
            raise _explain(self._url, error) from error
        data = b"".join(parts)
        if answer.status != 200:
            raise _declined(answer.status, data)
        return data

    def _trust(self) -> None:
        """Reload the CA and the certificate if they have changed, so that they can be replaced
        while the agent runs.
        """
        files = (self._tls_ca, "tls_ca"), (self._certificate, "certificate")
        versions = tuple(None if path is None else version_of(path, name) for path, name in files)
        if self._tls is None or versions != self._versions:
            self._tls = client_context(self._tls_ca, self._certificate)
            self._versions = versions

    def _credentials(self) -> dict[str, str]:
        """The headers that identify this node, unless its certificate does."""
        if self._certificate is not None or self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token(self._token_file)}"}

    @staticmethod
    def _token(token_file: Path) -> str:
        """Read the token again for each dial, so that it can be replaced while the agent runs."""
        try:
            with token_file.open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if _is_token(str(token_file)):
                raise ConfigError(
                    "token_file: is itself a token; write it to a file of mode 0600, and name that"
                ) from None
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"token_file: {token_file} cannot be read ({why})") from error
        if not token or not token.isprintable() or " " in token:
            raise ConfigError(f"token_file: {token_file} does not hold one token")
        return token


def _is_token(text: str) -> bool:
    try:
        parse(text)
    except BadToken:
        return False
    return True


async def stay_connected(
    dialer: Dialer,
    path: str,
    frame_bytes_max: int,
    converse: Converse,
    hurry: asyncio.Event | None = None,
    silence_s: Callable[[], float | None] = lambda: None,
) -> Never:
    """Dial for ever. `converse` uses the connection until it is of no more use.

    If the peer had accepted the agent, `converse` returns the reason. Otherwise it raises
    ConnectionLostError, and the next pause is longer. `hurry`, when set, ends a pause, because the
    peer is known to be back. `silence_s` is called for each dial; its result is as in
    `Dialer.dial`.
    """
    while True:
        retrying = AsyncRetrying(
            sleep=_sleep_until(hurry or asyncio.Event()),
            wait=_pause,
            retry=retry_if_exception_type(ConnectionLostError),
            before_sleep=_retry_logger(path),
        )
        async for attempt in retrying:
            with attempt:
                websocket = await dialer.dial(path, frame_bytes_max, silence_s())
                try:
                    why = await converse(websocket)
                finally:
                    await websocket.close()
                _log.info("disconnected", path=path, why=why)
        await asyncio.sleep(random.uniform(0.0, _PAUSE_FIRST_S))  # noqa: S311  spread, no secret


def _sleep_until(hurry: asyncio.Event) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await hurry.wait()
        except TimeoutError:
            pass
        hurry.clear()

    return sleep


def _pause(state: RetryCallState) -> float:
    error = _lost(state)
    if error is not None and error.waits_s:
        return error.waits_s * random.uniform(1.0, 1.0 + _WAITS_SPREAD)  # noqa: S311 - no secret
    if _refused(state):
        return _PAUSE_REFUSED(state)
    soon = (state.seconds_since_start or 0.0) < _ABSENT_S
    if soon and error is not None and error.absent:
        return _PAUSE_ABSENT(state)
    return _PAUSE(state)


def _refused(state: RetryCallState) -> bool:
    error = _lost(state)
    return error is not None and error.refused


def _lost(state: RetryCallState) -> ConnectionLostError | None:
    error = state.outcome.exception() if state.outcome is not None else None
    return error if isinstance(error, ConnectionLostError) else None


def _retry_logger(path: str) -> Callable[[RetryCallState], None]:
    logged = ""

    def log_retry(state: RetryCallState) -> None:
        nonlocal logged
        text = str(state.outcome.exception()) if state.outcome is not None else ""
        if text == logged and state.attempt_number % _LOG_EVERY:
            return
        logged = text
        if _refused(state):
            text += (
                f" (dials again in {state.upcoming_sleep:.0f} s; once that is fixed, a restart of "
                "this agent, which leaves its jobs running, dials at once)"
            )
        _log.warning(
            "not_connected",
            path=path,
            why=text,
            attempts=state.attempt_number,
            pause_s=round(state.upcoming_sleep, 3),
        )

    return log_retry


def _explain(url: str, error: Exception) -> ConnectionLostError:
    match error:
        case aiohttp.WSServerHandshakeError(status=401) if _says(error, WAITS):
            return ConnectionLostError(
                f"{url} does not accept this node yet: it waits for `muster node accept`",
                refused=True,
                waits_s=_waits_s(error),
            )
        case aiohttp.WSServerHandshakeError(status=401) if _says(error, REPLACED):
            return ConnectionLostError(
                f"{url} does not accept this node's certificate, because a later one is in use: "
                "this agent asks for another at once, which ends both if a copy of its key is in "
                "use; then run `muster join` on this node again",
                refused=True,
                replaced=True,
            )
        case aiohttp.WSServerHandshakeError(status=401 | 403 as status):
            return ConnectionLostError(
                f"{url} does not accept this node's certificate or token ({status}): a certificate "
                "waits for `muster node accept`, was revoked, or has expired (muster join gets "
                "another); if the node has a token_file, put a join token of the coordinator there",
                refused=True,
            )
        case aiohttp.WSServerHandshakeError(status=status):
            return ConnectionLostError(
                f"{url} answered {status} instead of opening a websocket: is it a coordinator?"
            )
        case aiohttp.ClientConnectorCertificateError():
            return ConnectionLostError(_why_not_trusted(url, error.certificate_error))
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return ConnectionLostError(
                f"{url} cannot be reached: nothing listens there", absent=True
            )
        case TimeoutError():
            return ConnectionLostError(f"{url} did not answer within {_HANDSHAKE_S:g} s")
        case aiohttp.ClientConnectorError():
            return ConnectionLostError(f"{url} cannot be reached: {_in_words(error.os_error)}")
        case _:
            return ConnectionLostError(f"{url} cannot be reached: {error}")


def _says(error: aiohttp.WSServerHandshakeError, what: str) -> bool:
    return error.headers is not None and error.headers.get(HEADER) == what


def _waits_s(error: aiohttp.WSServerHandshakeError) -> float:
    text = "" if error.headers is None else error.headers.get("Retry-After", "")
    asked_s = float(text) if text.isdecimal() else _WAITS_S
    return min(max(asked_s, 1.0), _WAITS_MOST_S)


def _declined(status: int, body: bytes) -> ConnectionLostError:
    try:
        why = str(msgspec.json.decode(body, type=dict[str, object]).get("detail", ""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        why = ""
    text = why[:_WHY_CHARS_MAX] or f"the coordinator answered {status}"
    return ConnectionLostError(text, refused=400 <= status < 500 and status not in (408, 429))


def _why_not_trusted(url: str, error: Exception) -> str:
    hint = "tls_ca names a CA of your own"
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = certificate_hint(error.verify_code, hint)
        return f"{url}: its certificate is not trusted ({error.verify_message}); {hint}"
    return f"{url}: its certificate is not trusted ({error}); {hint}"


def _in_words(error: OSError) -> str:
    """Return the system's message. asyncio's own messages name the call and the address."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _tune(websocket: Websocket) -> None:
    sock: socket.socket | None = websocket.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
