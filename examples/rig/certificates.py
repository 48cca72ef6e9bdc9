"""Certificate authority and a certificate for one address, valid for the life of a rig."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from examples.rig.machine import run

DAYS = "30"


class Certificates(NamedTuple):
    """PEM files."""

    ca: Path
    cert: Path
    key: Path


def make(folder: Path, address: str) -> Certificates:
    """Create them with openssl, like an operator. Raises RigError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Certificates(folder / "ca.pem", folder / "coordinator.pem", folder / "coordinator.key")
    authority = folder / "ca.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    new += ["-noenc", "-days", DAYS]
    _openssl(
        *(*new, "-keyout", str(authority), "-out", str(made.ca), "-subj", "/CN=rig"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    _openssl(
        *(*new, "-keyout", str(made.key), "-out", str(made.cert), "-subj", "/CN=coordinator"),
        *("-CA", str(made.ca), "-CAkey", str(authority)),
        *("-addext", f"subjectAltName=IP:{address}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )
    authority.unlink()
    return made


def _openssl(*argv: str) -> None:
    run(list(argv), "for the rig's coordinator")
