"""Warnings of a node's `doctor` about certificates: its own, its CA, and the coordinator's."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agent.config import AgentConfig
from muster.daemon.clock import SystemClock
from muster.protocol.certificate_ends import end_warning, missed_renewal_warning

_TIMEOUT_S: Final = 5.0
_RENEW: Final = (
    "the agent renews it by itself: its log has `certificate_not_renewed` and the reason. Once it "
    "has ended, run `muster join` again"
)
_NEW_CA: Final = "replace the CA in time: docs/how-to/operate.md, Certificates"
_SIGN: Final = (
    "on its machine: muster up --renew-certificate, or renew its tls.cert in your own way"
)


def certificate_ends(config: AgentConfig) -> tuple[tuple[str, str], ...]:
    """Return what ends soon or has ended, each with what to do. Asks the coordinator for its
    certificate; if it does not answer, others say so."""
    own, ca, coordinator = config.certificate, config.tls_ca, config.coordinator
    found = (
        (_end(f"the node's certificate {own}", _read(own), renews=True), _RENEW),
        (_end(f"the CA in {ca}", _read(ca)), _NEW_CA),
        (_end(f"the certificate of {coordinator}", _served(coordinator, own)), _SIGN),
    )
    return tuple((what, fix) for what, fix in found if what)


def _end(whose: str, pem: bytes, *, renews: bool = False) -> str:
    if not pem:
        return ""
    # Imported late, because only a node with a certificate needs it.
    from muster.daemon.certificates import validity

    try:
        begins, expires = validity(pem)
    except ValueError:
        return ""
    now = SystemClock().now().wall
    if renews:
        return missed_renewal_warning(whose, begins, expires, now)
    return end_warning(whose, expires, now)


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError:
        return b""


def _served(coordinator: str, own: Path | None) -> bytes:
    """Return the certificate that the coordinator shows, unverified. Nothing is sent."""
    url = urlsplit(coordinator)
    if url.scheme != "https" or url.hostname is None:
        return b""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # An ended one has to be read, too.
    context.verify_mode = ssl.CERT_NONE
    if own is not None:
        with contextlib.suppress(OSError, ssl.SSLError):
            context.load_cert_chain(own)
    try:
        with (
            socket.create_connection((url.hostname, url.port or 443), _TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=url.hostname) as connection,
        ):
            der = connection.getpeercert(binary_form=True)
    except (OSError, ValueError):
        return b""
    return ssl.DER_cert_to_PEM_cert(der).encode() if der else b""
