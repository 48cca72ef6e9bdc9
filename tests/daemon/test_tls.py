"""Real handshakes over real sockets, and errors in words."""

import asyncio
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from muster.daemon.errors import TlsError
from muster.daemon.tls import (
    BUFFER_BYTES,
    certificate_names,
    client_context,
    drop_connection,
    server_context,
)


@dataclass(frozen=True)
class Files:
    ca: Path
    cert: Path
    key: Path
    other_key: Path
    other_ca: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    ca, other = trustme.CA(), trustme.CA()
    cert = ca.issue_cert("localhost")
    made = Files(*(folder / name for name in ("ca", "cert", "key", "other_key", "other_ca")))
    ca.cert_pem.write_to_path(made.ca)
    other.cert_pem.write_to_path(made.other_ca)
    made.cert.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    cert.private_key_pem.write_to_path(made.key)
    other.issue_cert("localhost").private_key_pem.write_to_path(made.other_key)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """The TLS version that both agree on; raises the client's error."""
    left, right = socket.socketpair()
    left.settimeout(10)
    right.settimeout(10)

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True):
                pass
        except (ssl.SSLError, OSError):
            pass  # the client's side of the failure is the one looked at

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=name) as secure:
            return secure.version()
    finally:
        right.close()
        thread.join()
        left.close()


def test_both_ends_agree(files: Files) -> None:
    server = server_context(files.cert, files.key)
    assert handshake(server, client_context(files.ca), "localhost") == "TLSv1.3"


def test_an_unknown_authority_is_refused(files: Files) -> None:
    server = server_context(files.cert, files.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(files.other_ca), "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(None), "localhost")


def test_another_name_is_refused(files: Files) -> None:
    server = server_context(files.cert, files.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(files.ca), "elsewhere")


def test_nothing_below_1_2_is_spoken(files: Files) -> None:
    assert server_context(files.cert, files.key).minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context(files.ca).minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_missing_file_is_named(files: Files, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"tls\.cert: .*none cannot be read"):
        server_context(tmp_path / "none", files.key)
    with pytest.raises(TlsError, match=r"tls\.key: .*none cannot be read"):
        server_context(files.cert, tmp_path / "none")
    with pytest.raises(TlsError, match=r"tls_ca: .*none cannot be read"):
        client_context(tmp_path / "none")


def test_a_key_that_does_not_fit_is_named(files: Files) -> None:
    with pytest.raises(TlsError, match="other_key is not the private key of"):
        server_context(files.cert, files.other_key)


def test_an_encrypted_key_is_refused_without_a_question(files: Files, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    with pytest.raises(TlsError, match="locked is encrypted"):
        server_context(files.cert, locked)


def test_an_invalid_pem_file_is_refused(files: Files, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("hello\n")
    with pytest.raises(TlsError, match="PEM"):
        server_context(junk, files.key)
    with pytest.raises(TlsError, match="PEM"):
        client_context(junk)


def test_a_connection_is_cheap_and_carries_more_than_its_buffer(files: Files) -> None:
    assert asyncio.run(echoed(files, sent := bytes(range(256)) * 2048)) == (sent, BUFFER_BYTES)


async def echoed(files: Files, sent: bytes) -> tuple[bytes, int]:
    """Return the answer over TLS, and the size of the server's buffer."""
    held: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol: Any = vars(writer.transport)["_ssl_protocol"]
        held.append(len(protocol._ssl_buffer))
        writer.write(await reader.readexactly(len(sent)))
        await writer.drain()
        writer.close()

    context = server_context(files.cert, files.key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        trusted = client_context(files.ca)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusted, server_hostname="localhost"
        )
        writer.write(sent)
        came = await reader.read()
        writer.close()
    return came, held[0]


def test_the_names_of_a_certificate(files: Files, tmp_path: Path) -> None:
    assert certificate_names(files.cert, files.key) == ("localhost",)
    ca, cert, key = trustme.CA(), tmp_path / "cert", tmp_path / "key"
    made = ca.issue_cert("head", "head.example.org", "10.0.0.1")
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    assert certificate_names(cert, key) == ("head", "head.example.org")


def test_a_certificate_that_is_over_has_no_names(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    made = trustme.CA().issue_cert("head", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    assert certificate_names(cert, key) == ()


class Closed(asyncio.Transport):
    """A TLS connection of Python 3.11.2 that was closed twice."""

    asked = 0

    def abort(self) -> None:
        self.asked += 1
        nothing: Any = None
        nothing._abort()


def test_a_connection_that_is_closed_already_is_dropped_without_an_error() -> None:
    closed = Closed()
    drop_connection(closed)
    drop_connection(None)
    assert closed.asked == 1
