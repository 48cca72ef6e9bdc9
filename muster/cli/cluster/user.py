"""`muster user`: add, list, change and disable the users of a cluster."""

from __future__ import annotations

import sys
from typing import Final

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.cluster.printed_lines import login_line, person_line, public_url
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.client import Client
from muster.http.people import TokenRequest, UserAnswer, UserView, user_name_problem
from muster.protocol.roles import Role
from muster.protocol.text import count, named

_COLUMNS: Final = (
    Column("USER", elastic=True),
    Column("ROLE"),
    Column("TEAMS", drop=2),
    Column("TOKENS", right=True, drop=1),
    Column("JOBS", right=True),
    Column("STATE"),
)
_ROLES: Final = click.Choice([each.value for each in Role])


@click.group("user")
def command() -> None:
    """Add, list, change and disable users. Needs the role admin.

    A request acts as the user of its token. `muster token create` makes one.
    """


@command.command("add", short_help="Add a user.")
@click.argument("name", metavar="NAME")
@click.option(
    "--role", type=_ROLES, default=Role.USER.value, show_default=True, help="Role of the user."
)
@click.option("--team", "teams", metavar="TEAM", multiple=True, help="A team of the user.")
@click.option("--login", is_flag=True, help="Create a token, too, and print the user's line.")
@json_option
@connection_options
def add(*, name: str, role: str, teams: tuple[str, ...], login: bool, as_json: bool) -> None:
    """Add a user, who has no token yet. With --login, also create a token and print the line with
    which the user gets Muster and logs in, only this once.

    \b
    muster user add bob --team lab --login
    """
    if problem := user_name_problem(name):
        raise click.UsageError(f"{name!r} {problem}")
    if login and as_json:
        raise click.UsageError("--login prints a line: for JSON, use muster token create --json")
    client = connect()
    answer = client.add_user(name, Role(role), teams)
    _print(answer, as_json=as_json)
    if not login:
        note(f"for the user's line: muster token create --user {safe(name)}")
        return
    made = client.create_token(TokenRequest(user=name))
    note(
        f"{safe(name)} runs this line on their own machine, without root; it holds their token, "
        "so send it over a channel that others cannot read:"
    )
    url = public_url(made.address, client.url)
    line = person_line(url, made) or login_line(url, made)
    sys.stdout.write(f"{line}\n")
    if not made.ca_sha256:
        note(f"it asks for the token: {made.text}")


@command.command("list", short_help="List the users.")
@json_option
@connection_options
def list_(*, as_json: bool) -> None:
    """List the users, with the numbers of their tokens and of their jobs that have not ended."""
    found = connect().users()
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [_row(user) for user in found.users])


@command.command("set", short_help="Change the role or the teams of a user.")
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, help="New role.")
@click.option("--team", "teams", metavar="TEAM", multiple=True, help="A team; replaces all teams.")
@click.option("--no-teams", is_flag=True, help="Take the user out of all teams.")
@click.option("--enable", is_flag=True, help="Accept the user's tokens again after a `disable`.")
@json_option
@connection_options
def set_(
    *,
    name: str,
    role: str | None,
    teams: tuple[str, ...],
    no_teams: bool,
    enable: bool,
    as_json: bool,
) -> None:
    """Change a user. Open streams that the user may no longer read are cut within a second."""
    if teams and no_teams:
        raise click.UsageError("--team and --no-teams exclude each other: give one of them")
    if not (role or teams or no_teams or enable):
        raise click.UsageError("nothing to change: give --role, --team, --no-teams or --enable")
    answer = connect().change_user(
        name,
        role=Role(role) if role else None,
        teams=teams if teams or no_teams else None,
        enable=enable,
    )
    _print(answer, as_json=as_json)


@command.command("disable", short_help="Accept no token of a user any more.")
@click.argument("name", metavar="NAME")
@click.option("--end-jobs", is_flag=True, help="Cancel the user's jobs.")
@click.option("--keep-jobs", is_flag=True, help="Let the user's jobs run and start.")
@json_option
@connection_options
def disable(*, name: str, end_jobs: bool, keep_jobs: bool, as_json: bool) -> None:
    """Accept no token of a user any more: requests are refused, and open streams are cut within a
    second. Asks whether the user's jobs are to end, if there are any.

    The user's jobs and tokens stay. `muster user set NAME --enable` ends it.
    """
    if end_jobs and keep_jobs:
        raise click.UsageError("--end-jobs and --keep-jobs exclude each other: give one of them")
    client = connect()
    if not (end_jobs or keep_jobs):
        end_jobs = _asks_to_end(client, name)
    answer = client.disable_user(name, end_jobs=end_jobs)
    _print(answer, as_json=as_json)
    if answer.ended:
        note(f"cancelled {count(answer.ended, 'job')} of {safe(name)}")
    elif answer.user.jobs:
        note(f"{count(answer.user.jobs, 'job')} of {safe(name)} may run on")


def _asks_to_end(client: Client, name: str) -> bool:
    jobs = sum(user.jobs for user in client.users().users if user.name == name)
    if not jobs:
        return False
    has = f"{safe(name)} has {count(jobs, 'job')} that {'has' if jobs == 1 else 'have'} not ended"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{has}: give --end-jobs or --keep-jobs")
    them = "it" if jobs == 1 else "them"
    return click.confirm(f"{has}; cancel {them}?", default=False, err=True)


def _print(answer: UserAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    user = answer.user
    teams = f", of {named([safe(team) for team in user.teams])}" if user.teams else ""
    state = ", disabled" if user.disabled else ""
    same = "" if answer.changed else " (no change)"
    note(f"user {safe(user.name)}: role {user.role.value}{teams}{state}{same}")


def _row(user: UserView) -> list[str]:
    return [
        user.name,
        user.role.value,
        " ".join(user.teams) or "-",
        str(user.tokens),
        str(user.jobs),
        "disabled" if user.disabled else "-",
    ]
