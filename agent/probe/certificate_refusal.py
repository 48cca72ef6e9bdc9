"""The coordinator's refusal of a node's certificate, which its `doctor` reports."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agent.config import AgentConfig
from muster.daemon.errors import TlsError
from muster.daemon.tls import client_context

_ROUTE: Final = "/v1/agent"
_TIMEOUT_S: Final = 5.0
_BYTES_MAX: Final = 1 << 16
_UNAUTHORIZED: Final = 401
_FIX: Final = (
    "`muster nodes` says why; a node that waits or was revoked: run `muster join` on it, then "
    "`muster node accept` as an operator"
)


def certificate_refusal(config: AgentConfig) -> tuple[str, str] | None:
    """Return that the coordinator refuses this node's certificate, with what to do. Returns None if
    it accepts it, or does not answer, or the node has none.
    """
    url = urlsplit(config.coordinator)
    if config.certificate is None or url.scheme != "https" or url.hostname is None:
        return None
    try:
        context = client_context(config.tls_ca, config.certificate)
        asked = HTTPSConnection(url.hostname, url.port, timeout=_TIMEOUT_S, context=context)
        status, body = _answer(asked)
    except (OSError, ssl.SSLError, HTTPException, TlsError, ValueError):
        return None
    if status != _UNAUTHORIZED:
        return None
    return f"{config.coordinator} refuses this node: {_detail(body)}", _FIX


def _answer(connection: HTTPConnection) -> tuple[int, bytes]:
    """Dial as an agent does, without a handshake: an accepted certificate gets no connection."""
    try:
        connection.request("GET", _ROUTE)
        answer = connection.getresponse()
        return answer.status, answer.read(_BYTES_MAX)
    finally:
        connection.close()


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    return str(problem.get("detail") or "its certificate is not accepted")
