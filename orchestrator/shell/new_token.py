"""Drawing of a new token."""

import secrets
from typing import Final, NamedTuple

from muster.protocol.tokens import TokenClass, digest, make

_ID_BYTES: Final = 4
_SECRET_BYTES: Final = 32


class NewSecret(NamedTuple):
    """The id of a new token, its text, which is shown once, and the digest of its secret."""

    id: str
    text: str
    sha256: str


def draw(class_: TokenClass) -> NewSecret:
    """Return a token with 256 random bits."""
    name, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    return NewSecret(name, make(class_, name, secret), digest(secret))
