"""The tokens file: read at start and again when it changes."""

import hmac
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.daemon.clock import Clock
from muster.daemon.config_loader import read_yaml
from muster.daemon.durable_files import FileVersion, file_version
from muster.daemon.errors import ConfigError
from muster.protocol.tokens import (
    BadToken,
    Token,
    TokenClass,
    TokenRecord,
    TokensFile,
    digest,
    parse,
)

_LOOK_EVERY_S: Final = 1.0
_UNKNOWN: Final = digest("")

_log = structlog.get_logger("muster.tokens")


class TokenStore:
    """The valid tokens. A changed file is read again within a second, and at once for an unknown
    token, because it may be new.

    If a changed file is unreadable, an error is logged and the previous tokens stay valid: a typing
    error must not disconnect every agent.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read the file. Raises ConfigError."""
        self._path = path
        self._clock = clock
        self._looked_at = clock.now().mono
        self._version = _version(path)
        self._tokens = _read(path)
        self._teams = _teams(self._tokens)
        self._complaint = ""
        self._warn_of_admins()

    def find(self, text: str) -> TokenRecord | None:
        """Return the record of the token `text`, or None. Call `why_not` to check its validity."""
        try:
            token = parse(text)
        except BadToken:
            return None
        self._look()
        found = self._good(token)
        if found is None:
            self._look(now=True)
            found = self._good(token)
        return found

    def knows(self, record: TokenRecord) -> bool:
        """True if the token is in the file, valid or not."""
        known = self._tokens.get(record.id)
        return known is not None and known.sha256 == record.sha256

    def current(self, record: TokenRecord) -> TokenRecord:
        """Return the record of a valid token as it is now: its role and teams may have changed."""
        return self._tokens.get(record.id, record)

    def users(self) -> frozenset[str]:
        """Return the users that have a token."""
        return frozenset(self._teams)

    def teams_of(self, user: str) -> frozenset[str]:
        """Return the teams of a user, according to any of the user's tokens."""
        return self._teams.get(user, frozenset())

    def why_not(self, record: TokenRecord) -> str:
        """Return why a known token is no longer valid, or ""."""
        self._look()
        known = self._tokens.get(record.id)
        if known is None or not self.knows(record) or known.class_ is not record.class_:
            return "the token has been revoked"
        # The wall clock decides here because people write the expiry dates.
        if 0.0 < _expiry(known) <= self._clock.now().wall:
            return f"the token {known.id} has expired ({known.expires})"
        return ""

    def _good(self, token: Token) -> TokenRecord | None:
        record = self._tokens.get(token.id)
        # Compare even without such an id, so that timing does not reveal ids.
        same = hmac.compare_digest(
            digest(token.secret), record.sha256 if record is not None else _UNKNOWN
        )
        if record is None or not same or record.class_ is not token.class_:
            return None
        return record

    def _warn_of_admins(self) -> None:
        """Name the tokens of releases without roles: each of them is an admin's."""
        named = [
            f"{record.id} ({record.user})"
            for record in self._tokens.values()
            if record.class_ is TokenClass.ADMIN and record.role is None
        ]
        if named:
            _log.warning(
                "tokens_without_role",
                entries=named,
                why="an entry of class admin without a role may do everything, as before there "
                "were roles; write `role: user` (viewer, operator, admin) into each",
            )

    def _look(self, *, now: bool = False) -> None:
        moment = self._clock.now().mono
        # Do not read a broken file again for every unknown token.
        hurry = now and not self._complaint
        if not hurry and moment - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = moment
        complaint = ""
        try:
            version = _version(self._path)
            if version != self._version:
                # Set the version last: the error may pass without another change of the file.
                self._tokens = _read(self._path)
                self._teams = _teams(self._tokens)
                self._version = version
                _log.info("tokens_read", count=len(self._tokens))
                self._warn_of_admins()
        except ConfigError as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            _log.error("tokens_unreadable", why=complaint)
        self._complaint = complaint


def _version(path: Path) -> FileVersion:
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no tokens file, and no way to run without one; "
            "create one with: muster init"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{path}: others may read it (mode {found.st_mode & 0o777:04o}); chmod 600 {path}"
        )
    return file_version(found)


def _read(path: Path) -> dict[str, TokenRecord]:
    tree = read_yaml(path, TokensFile)
    try:
        records = msgspec.convert(tree, TokensFile).tokens
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a tokens file ({error})") from error
    tokens: dict[str, TokenRecord] = {}
    for record in records:
        if record.id in tokens:
            raise ConfigError(f"{path}: two tokens have the id {record.id}")
        if len(record.sha256) != len(_UNKNOWN) or not record.sha256.isascii():
            raise ConfigError(f"{path}: token {record.id}: sha256 is not 64 hex digits")
        try:
            _expiry(record)
        except ValueError as error:
            raise ConfigError(
                f"{path}: token {record.id}: expires: {record.expires!r} is not a time with its "
                "time zone, such as 2027-01-31T12:00:00Z"
            ) from error
        tokens[record.id] = record
    return tokens


def _teams(tokens: Mapping[str, TokenRecord]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for record in tokens.values():
        if record.class_ is not TokenClass.JOIN:
            found[record.user] = found.get(record.user, frozenset()) | frozenset(record.teams)
    return found


def _expiry(record: TokenRecord) -> float:
    """Return the expiry in UTC seconds, 0 for never. Raises ValueError."""
    if not record.expires:
        return 0.0
    moment = datetime.fromisoformat(record.expires)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.timestamp()
