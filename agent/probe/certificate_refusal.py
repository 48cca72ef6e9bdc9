"""The coordinator's refusal of a node, which its `doctor` reports."""

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
_REFUSED: Final = 409
_FIX: Final = (
    "`muster nodes` says why; a node that waits or was revoked: run `muster join` on it, then "
    "`muster node accept` as an operator"
)
_FIX_REFUSED: Final = (
    "do so and restart the agent, which leaves its jobs running: systemctl restart muster-agent"
)


def certificate_refusal(config: AgentConfig) -> tuple[str, str] | None:
    """Return that the coordinator refuses this node's certificate, or has refused the agent that
    showed it, with what to do. Returns None if it accepts both, or does not answer, or the node has
    no certificate.
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
    if status not in {_UNAUTHORIZED, _REFUSED}:
        return None
    fix = _FIX if status == _UNAUTHORIZED else _FIX_REFUSED
    return f"{config.coordinator} refuses this node: {_detail(body)}", fix


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
