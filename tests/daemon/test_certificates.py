"""The cluster's own CA: whom its certificates convince, and of what."""

import contextlib
import ssl
from pathlib import Path
from unittest.mock import Mock, PropertyMock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from muster.daemon.certificates import (
    Authority,
    BadRequestError,
    ends_at,
    fingerprint,
    is_authority,
    new_authority,
    new_key,
    node_certificate,
    requested_key,
    server_certificate,
    signing_request,
)
from muster.daemon.clock import SystemClock

NOW = SystemClock().now().wall
CA = new_authority(NOW)


def file(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def shake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """A TLS handshake in memory; returns the server's end. Raises SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=name)
    other = server.wrap_bio(there, back, server_side=True)
    for end in (one, other, one, other):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return other


def serving(folder: Path, names: tuple[str, ...], addresses: tuple[str, ...]) -> ssl.SSLContext:
    key = new_key()
    cert = server_certificate(CA, key, names, addresses, NOW)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file(folder / "server.pem", cert, key))
    return context


def trusting(folder: Path, ca: Authority = CA) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file(folder / "ca.pem", ca.cert))


def test_the_coordinator_is_known_by_all_its_names_and_addresses(tmp_path: Path) -> None:
    server = serving(tmp_path, ("head", "head.lab"), ("10.0.0.1", "fd00::1"))
    client = trusting(tmp_path)
    for name in ("head", "head.lab", "10.0.0.1", "fd00::1"):
        shake(client, server, name)
    for name in ("other", "10.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(client, server, name)


def test_another_ca_of_the_same_name_convinces_nobody(tmp_path: Path) -> None:
    server = serving(tmp_path, ("head",), ())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(trusting(tmp_path, new_authority(NOW)), server, "head")


def test_a_node_shows_its_certificate_and_cannot_pass_for_the_coordinator(tmp_path: Path) -> None:
    key = new_key()
    made = node_certificate(CA, signing_request(key, "gpu-01"), "gpu-01", NOW, 3600)
    assert made.expires == pytest.approx(NOW + 3600, abs=1) == ends_at(made.pem)
    chain = file(tmp_path / "node.pem", made.pem, key)

    server = serving(tmp_path, ("head",), ())
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(file(tmp_path / "ca.pem", CA.cert))
    client = trusting(tmp_path)
    with pytest.raises(ssl.SSLError):
        shake(client, server, "head")
    client.load_cert_chain(chain)
    shown = shake(client, server, "head").getpeercert(binary_form=True)
    assert shown is not None
    assert fingerprint(shown) == made.fingerprint

    thief = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    thief.load_cert_chain(chain)
    naive = trusting(tmp_path)
    naive.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(naive, thief, "head")


def test_a_request_names_its_node_and_is_signed_with_its_own_key() -> None:
    key = new_key()
    asked = signing_request(key, "gpu-01")
    assert requested_key(asked, "gpu-01") == requested_key(signing_request(key, "b"), "b")
    with pytest.raises(BadRequestError, match="not for gpu-02"):
        node_certificate(CA, asked, "gpu-02", NOW, 60)
    for text in ("", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", CA.cert.decode()):
        with pytest.raises(BadRequestError):
            requested_key(text, "gpu-01")


def test_the_signature_of_a_key_of_another_kind_is_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Verifying the signature of an RSA key with a large exponent takes many times as long.
    asked = Mock()
    asked.public_key.return_value = Mock(spec=rsa.RSAPublicKey)
    asked.subject.get_attributes_for_oid.return_value = []
    verified = PropertyMock()
    type(asked).is_signature_valid = verified
    monkeypatch.setattr(x509, "load_pem_x509_csr", lambda _: asked)
    with pytest.raises(BadRequestError, match="is not one of"):
        requested_key("a request", "gpu-01")
    verified.assert_not_called()


def test_a_ca_is_a_certificate_that_signs_with_its_own_key() -> None:
    assert is_authority(CA)
    assert not is_authority(Authority(CA.cert, new_key()))
    key = new_key()
    assert not is_authority(Authority(server_certificate(CA, key, ("head",), (), NOW), key))
    assert not is_authority(Authority(b"nonsense", key))
