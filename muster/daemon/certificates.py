"""Keys and certificates of a cluster's own CA.

The CA signs the coordinator's certificate, which servers alone may use, and one certificate for
each node, which clients alone may use. So no node can pass itself off as the coordinator.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.protocol.timestamp import timestamp

CA_DAYS: Final = 3650
_CURVE: Final = ec.SECP256R1()
_HASH: Final = hashes.SHA256()
# The clocks of nodes may be behind that of the coordinator.
_BACKDATED: Final = timedelta(hours=1)
_MOMENT: Final = "%Y-%m-%d %H:%M UTC"


class BadRequestError(ValueError):
    """A certificate signing request that is not signed. The message is for users."""


class Authority(NamedTuple):
    """A CA as PEM texts: its certificate, and its private key without a passphrase."""

    cert: bytes
    key: bytes


class NodeCertificate(NamedTuple):
    """A node's certificate as PEM, the SHA-256 of its DER form and of its public key in hex, and
    its end in UTC seconds."""

    pem: bytes
    fingerprint: str
    key_sha256: str
    expires: float


def new_key() -> bytes:
    """Draw a private key; returns PEM without a passphrase."""
    return _key_pem(ec.generate_private_key(_CURVE))


def new_authority(now: float) -> Authority:
    """Make a CA that may sign certificates of servers and nodes, but no further CA."""
    key = ec.generate_private_key(_CURVE)
    name = _name("Muster cluster CA")
    public = key.public_key()
    cert = (
        _builder(name, name, public, now, timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, _HASH)
    )
    return Authority(cert.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def server_certificate(
    authority: Authority, key: bytes, names: Sequence[str], addresses: Sequence[str], now: float
) -> bytes:
    """Sign a certificate of the coordinator for host names and IP addresses; returns PEM."""
    entries: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    entries += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    ca, ca_key = _loaded(authority)
    public = _private(key).public_key()
    cert = (
        _builder(_name("Muster coordinator"), ca.subject, public, now, timedelta(days=CA_DAYS))
        .add_extension(x509.SubjectAlternativeName(entries), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_issued_by(ca), critical=False)
        .sign(ca_key, _HASH)
    )
    return cert.public_bytes(serialization.Encoding.PEM)


def signing_request(key: bytes, node: str) -> str:
    """Return a request (PEM) for a certificate of `node`, which proves that its author has the
    key."""
    asked = x509.CertificateSigningRequestBuilder().subject_name(_name(node))
    return asked.sign(_private(key), _HASH).public_bytes(serialization.Encoding.PEM).decode()


def requested_key(text: str, node: str) -> str:
    """Return the SHA-256 of the public key in a signing request. Raises BadRequestError."""
    return _key_digest(_requested(text, node))


def node_certificate(
    authority: Authority, text: str, node: str, now: float, lifetime_s: float
) -> NodeCertificate:
    """Sign a request for a certificate of `node`. Only the public key of the request is used.
    Raises BadRequestError.
    """
    ca, ca_key = _loaded(authority)
    public = _requested(text, node)
    lifetime = timedelta(seconds=lifetime_s)
    cert = (
        _builder(_name(node), ca.subject, public, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(_issued_by(ca), critical=False)
        .sign(ca_key, _HASH)
    )
    return NodeCertificate(
        cert.public_bytes(serialization.Encoding.PEM),
        fingerprint(cert.public_bytes(serialization.Encoding.DER)),
        _key_digest(public),
        cert.not_valid_after_utc.timestamp(),
    )


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate in DER form, in hex."""
    return hashlib.sha256(der).hexdigest()


def public_key_pin(pem: bytes) -> str:
    """Return the pin of a certificate's public key as curl's `--pinnedpubkey` takes it. A renewed
    certificate with the same key has the same pin. Raises ValueError.
    """
    public = x509.load_pem_x509_certificate(pem).public_key()
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return f"sha256//{base64.b64encode(hashlib.sha256(der).digest()).decode()}"


def certificate_hosts(pem: bytes) -> tuple[list[str], list[str]]:
    """Return the host names and the IP addresses of a server's certificate. Raises ValueError."""
    cert = x509.load_pem_x509_certificate(pem)
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    return names.get_values_for_type(x509.DNSName), addresses


def ends_at(pem: bytes) -> float:
    """Return when the first certificate of a PEM file ends, in UTC seconds. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def validity(pem: bytes) -> tuple[float, float]:
    """Return when the first certificate of a PEM file begins and ends, in UTC seconds. Raises
    ValueError.
    """
    cert = x509.load_pem_x509_certificate(pem)
    return cert.not_valid_before_utc.timestamp(), cert.not_valid_after_utc.timestamp()


def why_not_valid(pem: bytes, now: float) -> str:
    """Return that the first certificate of a PEM file begins after `now` or has ended, or "".
    Raises ValueError.
    """
    begins, ends = validity(pem)
    if now < begins:
        return f"begins at {timestamp(begins):{_MOMENT}}"
    return f"ended at {timestamp(ends):{_MOMENT}}" if now >= ends else ""


def renewal_due(pem: bytes) -> float:
    """Return when a certificate should be renewed, in UTC seconds: at two thirds of its lifetime.
    Raises ValueError.
    """
    cert = x509.load_pem_x509_certificate(pem)
    began = (cert.not_valid_before_utc + _BACKDATED).timestamp()
    return began + (cert.not_valid_after_utc.timestamp() - began) * 2 / 3


def is_authority(authority: Authority) -> bool:
    """True if the key is that of the certificate, and the certificate may sign others."""
    try:
        cert, key = _loaded(authority)
        basic = cert.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    return basic.ca and cert.public_key() == key.public_key()


def _requested(text: str, node: str) -> ec.EllipticCurvePublicKey:
    try:
        asked = x509.load_pem_x509_csr(text.encode())
        public = asked.public_key()
        ours = isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == _CURVE.name
        # Keys of other kinds are not verified, because their verification can take long.
        signed = ours and asked.is_signature_valid
        names = [
            str(each.value) for each in asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadRequestError("the signing request cannot be read") from error
    if not isinstance(public, ec.EllipticCurvePublicKey) or not ours:
        raise BadRequestError(f"the key of the signing request is not one of {_CURVE.name}")
    if not signed:
        raise BadRequestError("the signing request is not signed with its own key")
    if names != [node]:
        raise BadRequestError(f"the signing request is not for {node}")
    return public


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: float,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    at = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _BACKDATED)
        .not_valid_after(at + lifetime)
    )


def _usage(*, signs: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _loaded(authority: Authority) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    return x509.load_pem_x509_certificate(authority.cert), _private(authority.key)


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of an elliptic curve")  # noqa: TRY004 - the file is wrong
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _key_digest(public: ec.EllipticCurvePublicKey) -> str:
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()
