"""`muster token`: create, list and revoke access tokens in the coordinator's tokens file."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from muster.cli.cluster.init import default_folder, this_user, user_named
from muster.cli.cluster.tokens_file import changing, new_token, read_tokens, utc_text
from muster.cli.errors import RefusedError
from muster.cli.input.param_types import DURATION
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.client.config import client_file_path
from muster.daemon.clock import SystemClock
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass, TokenRecord

_COLUMNS: Final = (
    Column("ID"),
    Column("ROLE"),
    Column("USER", elastic=True),
    Column("TEAMS", drop=2),
    Column("CREATED", drop=1),
    Column("EXPIRES"),
)

JOIN: Final = TokenClass.JOIN.value

_file = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The coordinator's tokens file (default: that of `muster init`).",
)


class Created(msgspec.Struct, frozen=True):
    """The output of `muster token create --json`, the only time that the token is shown."""

    id: str
    token: str
    role: str
    user: str
    expires: str
    file: str


class TokenLine(msgspec.Struct, frozen=True):
    """A token in the output of `muster token list --json`, without its digest."""

    id: str
    role: str
    user: str
    created: str
    expires: str
    expired: bool
    teams: tuple[str, ...] = ()


@click.group("token")
def command() -> None:
    """Create, list and revoke tokens, on the machine that has the coordinator's tokens file.

    The coordinator rereads the file within a second of a change.
    """


@command.command("create", short_help="Create a token and print it, only this once.")
@click.option(
    "--role",
    type=click.Choice([*(each.value for each in Role), JOIN]),
    default=Role.USER.value,
    show_default=True,
    help="Role of the user; join: for agents.",
)
@click.option("--team", "teams", metavar="NAME", multiple=True, help="A team of the user.")
@click.option("--user", metavar="NAME", help="User of the token (default: you).")
@click.option(
    "--expires", type=DURATION, metavar="TIME", help="Lifetime, such as 30d (default: unlimited)."
)
@_file
@json_option
def create(
    *,
    role: str,
    teams: tuple[str, ...],
    user: str | None,
    expires: float | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Create a token and print it, alone, on standard output. It cannot be shown again: the file
    holds only a digest.

    \b
    muster token create --user bob --expires 30d
    """
    user = user_named(this_user(os.environ) if user is None else user)
    ends = "" if expires is None else utc_text(SystemClock().now().wall + expires)
    if role == JOIN:
        if teams:
            raise click.UsageError("a join token has no teams")
        text, record = new_token(TokenClass.JOIN, user, ends)
    else:
        text, record = new_token(TokenClass.USER, user, ends, Role(role), teams)
    path = _path(file)
    with changing(path) as records:
        records.append(record)
    if as_json:
        print_json(Created(record.id, text, role, user, ends, str(path)))
    else:
        print(text)
    until = f"until {ends}" if ends else "until it is revoked"
    note(
        f"token {record.id} of {safe(user)} is valid {until}; to revoke it: "
        f"muster token revoke {record.id}{f' --file {path}' if file else ''}"
    )


@command.command("list", short_help="List the tokens.")
@_file
@json_option
def list_(*, file: Path | None, as_json: bool) -> None:
    """List the tokens in the file. It does not contain their secrets."""
    now = SystemClock().now().wall
    lines = [_line(record, now) for record in read_tokens(_path(file))]
    if as_json:
        print_json({"tokens": lines})
        return
    rows = [
        [
            line.id,
            line.role,
            line.user,
            " ".join(line.teams) or "-",
            line.created or "-",
            _ends(line),
        ]
        for line in lines
    ]
    print_table(_COLUMNS, rows)


@command.command("revoke", short_help="Revoke tokens.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_file
@json_option
def revoke(*, ids: tuple[str, ...], file: Path | None, as_json: bool) -> None:
    """Revoke tokens: all that are named, or none if one is unknown. Within a second, the
    coordinator refuses requests with them and closes their streams and agent connections."""
    path = _path(file)
    with changing(path) as records:
        unknown = [each for each in ids if each not in {record.id for record in records}]
        if unknown:
            raise RefusedError(
                f"there is no token {', '.join(map(safe, unknown))} in {safe(str(path))}; nothing "
                "was revoked: muster token list"
            )
        gone = [record for record in records if record.id in ids]
        records[:] = [record for record in records if record.id not in ids]
    for record in gone:
        note(f"token {record.id} of {safe(record.user)} is revoked")
    if as_json:
        print_json({"tokens": [_line(record, SystemClock().now().wall) for record in gone]})


def _path(file: Path | None) -> Path:
    return (
        file if file is not None else default_folder(client_file_path(os.environ)) / "tokens.yaml"
    )


def _line(record: TokenRecord, now: float) -> TokenLine:
    ends = _moment(record.expires)
    return TokenLine(
        id=record.id,
        role=record.user_role.value if record.user_role else JOIN,
        user=record.user,
        created=record.created,
        expires=record.expires,
        expired=ends is not None and ends <= now,
        teams=record.teams,
    )


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _ends(line: TokenLine) -> str:
    return f"{line.expires or 'never'}{' (expired)' if line.expired else ''}"
