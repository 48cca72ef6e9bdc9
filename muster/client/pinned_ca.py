"""The coordinator's CA, known by its SHA-256 before it is fetched."""

from __future__ import annotations

import hashlib
import hmac
from http.client import HTTPException, HTTPSConnection
from ssl import CERT_NONE, create_default_context
from typing import Final

_BYTES_MAX: Final = 1 << 18
_TIMEOUT_S: Final = 30.0


class CaError(Exception):
    """The CA cannot be fetched, or is another one. The message is for users."""


def fetch_ca(host: str, port: int, sha256: str, what: str = "token") -> bytes:
    """Fetch the CA over a connection that proves nothing, and compare its digest. No secret is sent
    over this connection. `what` has the digest. Raises CaError.
    """
    context = create_default_context()
    context.check_hostname = False
    context.verify_mode = CERT_NONE
    connection = HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/v1/ca")
        answer = connection.getresponse()
        pem = answer.read(_BYTES_MAX)
    except (OSError, HTTPException) as error:
        raise CaError(f"the CA cannot be fetched from {host}:{port}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200 or not hmac.compare_digest(hashlib.sha256(pem).hexdigest(), sha256):
        raise CaError(
            f"{host}:{port} shows another CA than the one that the {what} names; the {what} was "
            "not sent;\n  check the address; if the coordinator has a new CA, ask an admin for a "
            f"new {what}"
        )
    return pem
