"""TLS contexts for the two ends of a link, with errors that name the file and the remedy."""

import asyncio
import contextlib
import hashlib
import ssl
from asyncio import sslproto
from pathlib import Path
from typing import Final, cast

from muster.daemon.durable_files import FileVersion, file_version
from muster.daemon.errors import TlsError

BUFFER_BYTES: Final = 16 * 1024
"""Read buffer of a connection: one TLS record."""


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """The context with which a daemon listens: TLS 1.2 or newer.

    `cert` is a PEM file with the certificate first and its chain after it, `key` its private key
    without a passphrase. With `client_ca`, each client must show a certificate of that CA. Raises
    TlsError.

    From then on every TLS connection of this process reads through BUFFER_BYTES. asyncio would give
    each connection 256 KiB: 1.2 GiB for the agents of a large cluster.
    """
    sslproto.SSLProtocol.max_size = BUFFER_BYTES
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _readable(cert, "tls.cert")
    _readable(key, "tls.key")
    try:
        # The empty password makes an encrypted key an error instead of a question on the terminal.
        context.load_cert_chain(cert, key, password=b"")
    except ssl.SSLError as error:
        raise TlsError(_why_not(error, cert, key)) from error
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def drop_connection(transport: asyncio.Transport | None) -> None:
    """Drop a connection at once, without a closing handshake, if it is still there."""
    if transport is not None:
        # In Python 3.11.2, a TLS transport that was closed twice has nothing to abort, and fails.
        with contextlib.suppress(AttributeError):
            transport.abort()


def certificate_names(cert: Path, key: Path) -> tuple[str, ...]:
    """The host names (subjectAltName) of the certificate. Returns () if it is not valid now.

    Raises TlsError.
    """
    server = server_context(cert, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # The ssl module decodes only verified certificates, so this certificate is trusted for itself.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one, other = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    try:
        for end in (one, other, one):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError:
        return ()
    found = one.getpeercert() or {}
    entries = cast("tuple[tuple[str, str], ...]", found.get("subjectAltName", ()))
    return tuple(name for kind, name in entries if kind == "DNS")


def peer_fingerprint(transport: asyncio.BaseTransport | None) -> str:
    """The SHA-256, in hex, of the certificate that the peer of a connection showed; "" without
    one.
    """
    connection = None if transport is None else transport.get_extra_info("ssl_object")
    der = None if connection is None else connection.getpeercert(binary_form=True)
    return hashlib.sha256(der).hexdigest() if der else ""


class Renewed:
    """A server context that follows the certificate's files, so that renewal needs no restart.

    Open connections keep the certificate with which they began.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """The same as `server_context`. Raises TlsError."""
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._version = self._versions()
        self._now = self.context = server_context(cert, key, client_ca)
        # Called in every handshake, also if the client sends no server name.
        self.context.sni_callback = self._choose

    def look(self) -> bool:
        """True if the files have changed. If so, new connections get the new certificate.

        Raises TlsError, and then the previous certificate stays in use.
        """
        version = self._versions()
        if version == self._version:
            return False
        self._now = server_context(self._cert, self._key, self._client_ca)
        self._version = version
        return True

    def _choose(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        connection.context = self._now

    def _versions(self) -> tuple[FileVersion, FileVersion]:
        return version_of(self._cert, "tls.cert"), version_of(self._key, "tls.key")


def version_of(path: Path, name: str) -> FileVersion:
    """The version of the file, to detect changes; `name` is its setting. Raises TlsError."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, name, error) from error
    return file_version(found)


def client_context(ca: Path | None, certificate: Path | None = None) -> ssl.SSLContext:
    """The context with which clients dial a daemon: TLS 1.2 or newer, certificate and host name
    checked.

    `ca` is a PEM file of the authorities to trust instead of the system's, `certificate` a PEM file
    with the client's own certificate and its key. Raises TlsError.
    """
    if ca is not None:
        _readable(ca, "tls_ca")
    try:
        context = ssl.create_default_context(
            ssl.Purpose.SERVER_AUTH, cafile=None if ca is None else str(ca)
        )
    except ssl.SSLError as error:
        raise TlsError(
            f"{ca}: no certificate in it can be read ({_reason(error)}); "
            "tls_ca takes a PEM file with one or more CA certificates"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        _readable(certificate, "certificate")
        try:
            context.load_cert_chain(certificate, password=b"")
        except ssl.SSLError as error:
            raise TlsError(
                f"certificate: {certificate} does not hold a key and its certificate "
                f"({_reason(error)}); `muster join` writes such a file"
            ) from error
    return context


def _readable(path: Path, name: str) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, name, error) from error


def _unreadable(path: Path, name: str, error: OSError) -> TlsError:
    return TlsError(f"{name}: {path} cannot be read ({error.strerror})")


def _why_not(error: ssl.SSLError, cert: Path, key: Path) -> str:
    reason = _reason(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{key} is not the private key of {cert}; use the key that the certificate came with"
    if b"ENCRYPTED" in key.read_bytes():
        return f"{key} is encrypted; a daemon needs a key file without a passphrase, mode 0600"
    return (
        f"{cert} and {key} cannot be used ({reason}); both must be PEM files, "
        "the certificate first in its file and its chain after it"
    )


def _reason(error: ssl.SSLError) -> str:
    return error.reason or error.strerror or str(error)
