"""Reading and changing the tokens file, which the coordinator rereads within a second."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from muster.daemon.clock import SystemClock
from muster.daemon.config_loader import read_yaml
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import ConfigError, FileError
from muster.protocol.roles import Role
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import TokenClass, TokenRecord, TokensFile, digest, make

PRIVATE: Final = 0o600
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 4
_HEAD: Final = (
    "# Access tokens; change them with `muster token`. The secrets are not stored and cannot be "
    "recovered.\n"
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
    if not path.exists():
        raise _no_file(path)
    try:
        return msgspec.convert(read_yaml(path, TokensFile), TokensFile).tokens
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a tokens file ({error})") from error


def _no_file(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: there is no tokens file; name it with --file (it is tokens.yaml in the folder "
        "that `muster init` wrote)"
    )


@contextmanager
def changing(path: Path) -> Iterator[list[TokenRecord]]:
    """Yield the tokens of a file for changing, and write them back at the end. A lock makes
    concurrent writers wait. The file's owner and symlinks to it are preserved. Raises ConfigError
    and FileError."""
    path = _target(path)
    fd = _locked(path)
    try:
        records = list(read_tokens(path))
        yield records
        owner = os.fstat(fd)
        write_atomic(
            path, tokens_text(records).encode(), PRIVATE, owner=(owner.st_uid, owner.st_gid)
        )
    finally:
        os.close(fd)


def _target(path: Path) -> Path:
    """Resolve symlinks, because an atomic write would replace the link and leave its target
    unchanged."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise ConfigError(f"{path}: is a broken link") from error


def _locked(path: Path) -> int:
    """Open and lock the file. Retries if the previous lock holder replaced it in the meantime."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _no_file(path) from error
        except OSError as error:
            raise FileError(f"{path}: cannot be changed: {error.strerror}") from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
        os.close(fd)
