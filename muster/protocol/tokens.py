"""Bearer tokens, `muster_<class>_<id>_<secret>`, and the file that maps them to users.

The file holds a digest of each secret, never the secret. A secret has 256 random bits, so a plain
SHA-256 is enough: it cannot be guessed.
"""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Final, assert_never

import msgspec

from muster.protocol.roles import Role

TOKEN_CHARS_MAX: Final = 256
_DIGEST_CHARS: Final = 64

_TOKEN: Final = re.compile(r"muster_([a-z]{1,16})_([a-z0-9]{4,32})_([A-Za-z0-9_-]{32,128})")

_JOIN_PREFIX: Final = "mj1"
_JOIN_SECRET: Final = re.compile(r"([a-z0-9]{4,32})-([A-Za-z0-9_]{32,128})")

_IN_A_TEXT: Final = re.compile(
    r"(muster_[a-z]{1,16}_[a-z0-9]{4,32}_|mj1\.[0-9a-f]{64}\.[a-z0-9]{4,32}-)[A-Za-z0-9_-]{8,}"
)


class TokenClass(enum.Enum):
    """Class of a token. USER: a person's. JOIN: only the agents' connections. ADMIN: a person's, as
    releases without roles wrote it; its role is admin unless its record names another.
    """

    ADMIN = "admin"
    USER = "user"
    JOIN = "join"


class BadToken(ValueError):
    """A text that is not a token. The message never repeats it."""


class Token(msgspec.Struct, frozen=True):
    """A parsed token. Print its `id`, never its secret."""

    class_: TokenClass
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.class_.value}, {self.id})"


class JoinSecretText(msgspec.Struct, frozen=True):
    """A parsed join secret, `mj1.SHA256.ID-SECRET`: the SHA-256 of the coordinator's CA, by which a
    node knows the coordinator, the id of the secret, and the secret.
    """

    ca_sha256: str
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"JoinSecretText({self.id})"


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the tokens file. `created` and `expires` are RFC 3339; without `expires` the
    token is valid until it is removed. `user` is the owner of jobs submitted with it. Of a join
    token, `role` and `teams` mean nothing.
    """

    id: str
    class_: TokenClass = msgspec.field(name="class")
    sha256: str
    user: str
    created: str = ""
    expires: str = ""
    role: Role | None = None
    teams: tuple[str, ...] = ()

    @property
    def user_role(self) -> Role | None:
        """The role of the user; None for a join token."""
        match self.class_:
            case TokenClass.ADMIN:
                return self.role or Role.ADMIN
            case TokenClass.USER:
                return self.role or Role.USER
            case TokenClass.JOIN:
                return None
            case _:
                assert_never(self.class_)


class TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole tokens file (YAML or JSON)."""

    tokens: tuple[TokenRecord, ...]


def make(class_: TokenClass, id_: str, secret: str) -> str:
    """Return the text of a token. `id_` has 4 to 32 characters of a-z0-9; `secret` is e.g.
    `secrets.token_urlsafe(32)`.

    Raises BadToken.
    """
    text = f"muster_{class_.value}_{id_}_{secret}"
    parse(text)
    return text


def parse(text: str) -> Token:
    """Parse a token. Raises BadToken."""
    match = _TOKEN.fullmatch(text) if len(text) <= TOKEN_CHARS_MAX else None
    if match is None:
        raise BadToken("not a token of Muster (muster_<class>_<id>_<secret>)")
    try:
        class_ = TokenClass(match[1])
    except ValueError:
        raise BadToken(f"no token class is called {match[1]!r}") from None
    return Token(class_, match[2], match[3])


def make_join(ca_sha256: str, id_: str, secret: str) -> str:
    """Return the text of a join secret. Raises BadToken."""
    text = f"{_JOIN_PREFIX}.{ca_sha256}.{id_}-{secret}"
    parse_join(text)
    return text


def parse_join(text: str) -> JoinSecretText:
    """Parse a join secret. Raises BadToken."""
    prefix, _, rest = text.partition(".")
    ca_sha256, _, own = rest.partition(".")
    match = _JOIN_SECRET.fullmatch(own)
    if prefix != _JOIN_PREFIX or len(ca_sha256) != _DIGEST_CHARS or match is None:
        raise BadToken(
            "not a whole join secret: it is mj1.SHA256.SECRET, as `muster token create --join` "
            "prints it"
        )
    return JoinSecretText(ca_sha256, match[1], match[2])


def without_secrets(text: str) -> str:
    """Return the text with all tokens reduced to their ids."""
    return _IN_A_TEXT.sub(r"\1...", text)


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hex, for the tokens file."""
    return hashlib.sha256(secret.encode()).hexdigest()
