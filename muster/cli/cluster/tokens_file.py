"""The tokens file of a new cluster, which the coordinator imports at its first start."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.daemon.clock import SystemClock
from muster.daemon.config_loader import read_yaml
from muster.daemon.errors import ConfigError
from muster.protocol.roles import Role
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import TokenClass, TokenRecord, TokensFile, digest, make

PRIVATE: Final = 0o600
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 4
_HEAD: Final = (
    "# The first tokens of a cluster, imported at the first start of its coordinator and not read "
    "again:\n# from then on, use `muster user` and `muster token`. Secrets are not stored.\n"
)


def new_token(
    class_: TokenClass,
    user: str,
    expires: str = "",
    role: Role | None = None,
    teams: Sequence[str] = (),
) -> tuple[str, TokenRecord]:
    """Create a token. Returns its text and its record for the tokens file, which lacks the
    secret."""
    name, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    record = TokenRecord(
        id=name,
        class_=class_,
        sha256=digest(secret),
        user=user,
        created=utc_text(SystemClock().now().wall),
        expires=expires,
        role=role,
        teams=tuple(teams),
    )
    return make(class_, name, secret), record


def utc_text(seconds: float) -> str:
    """Format seconds since 1970 as RFC 3339, to the second."""
    return timestamp(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def tokens_text(records: Sequence[TokenRecord]) -> str:
    """Return the content of a tokens file with these records."""
    text = f"{_HEAD}tokens:{'' if records else ' []'}\n"
    for record in records:
        fields: Mapping[str, object] = {k: v for k, v in msgspec.to_builtins(record).items() if v}
        # Because a JSON string is a YAML scalar, YAML does not read it as a number or a date.
        first, *rest = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
        text += "\n".join([f"  - {first}", *(f"    {line}" for line in rest)]) + "\n"
    return text


def read_tokens(path: Path) -> tuple[TokenRecord, ...]:
    """Read the tokens of a file. Raises ConfigError."""
    try:
        return msgspec.convert(read_yaml(path, TokensFile), TokensFile).tokens
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a tokens file ({error})") from error
