"""`muster token`: create, list and revoke access tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.cluster.printed_lines import (
    JoinOptions,
    install_line,
    join_line,
    login_line,
    person_line,
    public_url,
)
from muster.cli.errors import RefusedError
from muster.cli.input.param_types import DURATION
from muster.cli.output.format import moment, note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.client import Client
from muster.client import enrolment as calls
from muster.http.enrolment import (
    JOIN_S,
    EnrolmentList,
    JoinSecretRequest,
    JoinSecretView,
)
from muster.http.people import NewToken, TokenList, TokenRequest, TokenView
from muster.protocol.outcome import EXIT_CLIENT
from muster.protocol.roles import Role
from muster.protocol.text import count
from muster.protocol.tokens import BadToken, TokenClass, parse

JOIN: Final = TokenClass.JOIN.value
_COLUMNS: Final = (
    Column("ID"),
    Column("ROLE"),
    Column("USER", elastic=True),
    Column("LABEL", drop=1),
    Column("CREATED", drop=3),
    Column("USED", drop=2),
    Column("EXPIRES"),
)


_JOIN_COLUMNS: Final = (
    Column("ID"),
    Column("NODES"),
    Column("NAMES", elastic=True),
    Column("POOL", drop=1),
    Column("BY", drop=2),
    Column("LABEL", drop=3),
    Column("EXPIRES"),
)


@click.group("token")
def command() -> None:
    """Create, list and revoke tokens. Admins do so for everybody; others list and revoke their own.

    A token is shown once. The coordinator stores a digest of it.
    """


@command.command("create", short_help="Create a token or a join secret; prints it only once.")
@click.option("--user", metavar="NAME", help="User of the token (default: you).")
@click.option("--label", metavar="TEXT", default="", help="What uses it, such as `laptop`.")
@click.option(
    "--role",
    type=click.Choice([*(each.value for each in Role), JOIN]),
    help="A lesser role than the user's; join: for agents without certificates.",
)
@click.option(
    "--expires",
    type=DURATION,
    metavar="TIME",
    help="Lifetime, such as 30d (default: unlimited; 1h for a join secret).",
)
@click.option("--join", is_flag=True, help="Create a secret with which nodes join.")
@click.option("--uses", type=click.IntRange(1, 100_000), help="With --join: nodes (default: 1).")
@click.option("--names", metavar="PATTERN", help="With --join: names, such as gpu-* (default: *).")
@click.option("--pool", metavar="POOL", help="With --join: the pool of these nodes.")
@json_option
@connection_options
def create(
    *,
    user: str | None,
    label: str,
    role: str | None,
    expires: float | None,
    join: bool,
    uses: int | None,
    names: str | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """Create a token and print it, alone, on standard output. It cannot be shown again. Needs the
    role admin. With --join, create a secret with which nodes join, and print the line for them.

    \b
    muster token create --user bob --expires 30d
    muster token create --join --uses 16 --names 'gpu-*'
    """
    if join:
        if user is not None or role is not None:
            raise click.UsageError("a join secret has neither user nor role")
        _create_join(uses or 1, expires or JOIN_S, names or "*", pool or "", label, as_json=as_json)
        return
    if uses is not None or names is not None or pool is not None:
        raise click.UsageError("--uses, --names and --pool need --join")
    if role == JOIN and user is not None:
        raise click.UsageError("a join token has no user: leave --user out")
    client = connect()
    made = client.create_token(
        TokenRequest(
            user=user or "",
            label=label,
            role=None if role in (None, JOIN) else Role(role),
            expires_s=expires,
            join=role == JOIN,
        )
    )
    print_token(client, made, as_json=as_json)


@command.command("list", short_help="List tokens.")
@click.option("--user", metavar="NAME", help="Only tokens of this user.")
@click.option("--join", is_flag=True, help="List join secrets, and machines that wait.")
@json_option
@connection_options
def list_(*, user: str | None, join: bool, as_json: bool) -> None:
    """List your tokens, or as an admin all. USED is the last use, to the day if it was before the
    coordinator was last restarted. With --join, list the join secrets, and the machines that wait
    for `muster node accept`."""
    if join:
        _list_join(as_json=as_json)
        return
    found = connect().tokens(user)
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [_row(token) for token in found.tokens])


@command.command("revoke", short_help="Revoke tokens.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--join", is_flag=True, help="The IDs are those of join secrets.")
@json_option
@connection_options
def revoke(*, ids: tuple[str, ...], yes: bool, join: bool, as_json: bool) -> int:
    """Revoke tokens: all that are named, or none if one is unknown. Within a second, the
    coordinator refuses requests with them and closes their streams and agent connections.

    A whole token stands for its id.
    """
    client = connect()
    if join:
        secrets = [client.call(calls.revoke_join_secret(name)) for name in dict.fromkeys(ids)]
        for secret in secrets:
            note(f"join secret {secret.id} is revoked; nodes that joined with it stay")
        if as_json:
            print_json(EnrolmentList(tuple(secrets), ()))
        return 0
    found = _named(client, [_id(each) for each in ids])
    for token in found:
        note(f"token {token.id}{_whose(token)}: {_use(token)}")
    if not yes and sys.stdin.isatty():
        what = "this token" if len(found) == 1 else f"these {len(found)} tokens"
        if not click.confirm(f"revoke {what}?", default=False, err=True):
            note("nothing was revoked")
            return EXIT_CLIENT
    gone = []
    for token in found:
        gone.append(client.revoke_token(token.id))
        note(f"token {token.id}{_whose(token)} is revoked")
    if as_json:
        print_json(TokenList(tuple(gone)))
    return 0


def print_token(client: Client, made: NewToken, *, as_json: bool) -> None:
    """Print a new token, and for people the lines with which they use it."""
    if as_json:
        print_json(made)
    else:
        print(made.text)
    token = made.token
    until = f"until {moment(token.expires)}" if token.expires else "until it is revoked"
    note(
        f"token {token.id}{_whose(token)} is valid {until}; to revoke it: "
        f"muster token revoke {token.id}"
    )
    if token.user:
        print_login(client.url, made)


def print_login(url: str, made: NewToken) -> None:
    """Print the lines for the machine of the token's user."""
    url = public_url(made.address, url)
    if line := person_line(url, made):
        note(f"on the user's machine, which need not have Muster: {line}")
        note(f"on a machine that has Muster: {login_line(url, made)}")
    else:
        note(f"on the user's machine: {login_line(url, made)}")


def _create_join(
    uses: int, expires_s: float, names: str, pool: str, label: str, *, as_json: bool
) -> None:
    client = connect()
    made = client.call(
        calls.create_join_secret(JoinSecretRequest(uses, expires_s, names, pool, label))
    )
    url, options = public_url(made.address, client.url), JoinOptions(made.run_as, made.python)
    if as_json:
        print_json(made)
    else:
        print(join_line(url, made, options))
    if made.pin and not as_json:
        note(f"a machine without Muster: {install_line(url, made.pin, made, options)}")
    secret = made.secret
    note(
        f"join secret {secret.id} is for {count(secret.uses, 'node')}, until "
        f"{moment(secret.expires)}; to revoke it: muster token revoke --join {secret.id}"
    )


def _list_join(*, as_json: bool) -> None:
    found = connect().call(calls.enrolment())
    if as_json:
        print_json(found)
        return
    print_table(_JOIN_COLUMNS, [_join_row(secret) for secret in found.secrets])
    for each in found.waiting:
        taken = ", a name that another machine has" if each.known else ""
        note(
            f"a machine at {safe(each.peer)} waits to be {safe(each.node)}{taken} (certificate "
            f"{each.fingerprint[:16]}): muster node accept {safe(each.node)}, or with --reject"
        )


def _join_row(secret: JoinSecretView) -> list[str]:
    ends = moment(secret.expires)
    return [
        secret.id,
        f"{secret.used}/{secret.uses}",
        secret.names,
        secret.pool or "-",
        secret.by,
        secret.label or "-",
        f"{ends} ({secret.problem})" if secret.problem else ends,
    ]


def _id(text: str) -> str:
    try:
        return parse(text).id
    except BadToken:
        return text


def _named(client: Client, ids: Sequence[str]) -> list[TokenView]:
    known = {token.id: token for token in client.tokens().tokens}
    unknown = [each for each in ids if each not in known]
    if unknown:
        raise RefusedError(
            f"there is no token {', '.join(map(safe, unknown))} that you may revoke; nothing was "
            "revoked: muster token list"
        )
    return [known[each] for each in dict.fromkeys(ids)]


def _whose(token: TokenView) -> str:
    label = f" ({safe(token.label)})" if token.label else ""
    return f" of {safe(token.user)}{label}" if token.user else f" of agents{label}"


def _use(token: TokenView) -> str:
    used = f"last used {moment(token.used)}" if token.used else "not used yet"
    if not token.user:
        if not token.agents:
            return f"{used}; no agent is connected with it"
        who = f"{count(token.agents, 'agent')} {'is' if token.agents == 1 else 'are'} connected"
        jobs = f"with {count(token.jobs, 'job')} on their nodes"
        return f"{used}; {who} with it, {jobs}, and would keep jobs for a lease only"
    if not token.jobs:
        return used
    return f"{used}; {safe(token.user)} has {count(token.jobs, 'job')} that would run on"


def _row(token: TokenView) -> list[str]:
    ends = moment(token.expires) if token.expires else "never"
    return [
        token.id,
        token.role,
        token.user or "-",
        token.label or "-",
        moment(token.created),
        moment(token.used) if token.used else "-",
        f"{ends} ({token.problem})" if token.problem else ends,
    ]
