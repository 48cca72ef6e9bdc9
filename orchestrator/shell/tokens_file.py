"""The tokens file: the users and tokens of a new cluster, imported at its first start."""

import hashlib
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.daemon.config_loader import read_yaml
from muster.daemon.errors import ConfigError
from muster.http.people import user_name_problem
from muster.protocol.tokens import TokenClass, TokenRecord, TokensFile, digest
from orchestrator.core.model.people import KnownToken, KnownUser, People

_DIGEST_CHARS: Final = len(digest(""))

_log = structlog.get_logger("muster.tokens")


def people_of(path: Path) -> People:
    """Return the users and tokens of the file. A user has the most of the roles of their tokens,
    and a token with a lesser role keeps it. Raises ConfigError.
    """
    _check_mode(path)
    records = _read(path)
    _warn_of_admins(records)
    users: dict[str, KnownUser] = {}
    tokens: dict[str, KnownToken] = {}
    for record in records:
        role = record.user_role
        if role is not None:
            if problem := user_name_problem(record.user):
                raise ConfigError(f"{path}: token {record.id}: user: {record.user!r} {problem}")
            known = users.get(record.user, KnownUser(record.user, role))
            most = role if role.includes(known.role) else known.role
            teams = tuple(sorted({*known.teams, *record.teams}))
            users[record.user] = KnownUser(record.user, most, teams)
        tokens[record.id] = _token(record)
    for name, token in tokens.items():
        if token.user and token.role is users[token.user].role:
            tokens[name] = msgspec.structs.replace(token, role=None)
    return People(users, tokens, _digest(records))


def warn_if_changed(path: Path, imported: str) -> None:
    """Log a warning if the tokens file is not the one that was imported."""
    try:
        os.stat(path)
    except OSError:
        return
    try:
        same = _digest(_read(path)) == imported
    except ConfigError:
        same = False
    if not same:
        _log.warning(
            "tokens_file_not_read",
            path=str(path),
            why="the file has changed since it was imported, and is not read any more: users and "
            "tokens are in the journal. Use `muster user` and `muster token`; without an admin's "
            "token: muster coordinator --new-admin NAME",
        )


def _token(record: TokenRecord) -> KnownToken:
    join = record.class_ is TokenClass.JOIN
    return KnownToken(
        record.id,
        record.class_,
        record.sha256,
        "" if join else record.user,
        role=None if join else record.user_role,
        expires=_expiry(record),
    )


def _digest(records: Iterable[TokenRecord]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(records))).hexdigest()


def _warn_of_admins(records: Iterable[TokenRecord]) -> None:
    """Name the tokens of releases without roles: each of them is an admin's."""
    named = [
        f"{record.id} ({record.user})"
        for record in records
        if record.class_ is TokenClass.ADMIN and record.role is None
    ]
    if named:
        _log.warning(
            "tokens_without_role",
            entries=named,
            why="an entry of class admin without a role may do everything, as before there were "
            "roles; change the role of its user with: muster user set NAME --role user",
        )


def _check_mode(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no tokens file, and no way to run without one; "
            "create one with: muster init"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if mode & 0o077:
        raise ConfigError(f"{path}: others may read it (mode {mode & 0o777:04o}); chmod 600 {path}")


def _read(path: Path) -> tuple[TokenRecord, ...]:
    tree = read_yaml(path, TokensFile)
    try:
        records = msgspec.convert(tree, TokensFile).tokens
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a tokens file ({error})") from error
    known: set[str] = set()
    for record in records:
        if record.id in known:
            raise ConfigError(f"{path}: two tokens have the id {record.id}")
        known.add(record.id)
        if len(record.sha256) != _DIGEST_CHARS or not record.sha256.isascii():
            raise ConfigError(f"{path}: token {record.id}: sha256 is not 64 hex digits")
        try:
            _expiry(record)
        except ValueError as error:
            raise ConfigError(
                f"{path}: token {record.id}: expires: {record.expires!r} is not a time with its "
                "time zone, such as 2027-01-31T12:00:00Z"
            ) from error
    return records


def _expiry(record: TokenRecord) -> float | None:
    """Return the expiry in UTC seconds, None for never. Raises ValueError."""
    if not record.expires:
        return None
    moment = datetime.fromisoformat(record.expires)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.timestamp()
