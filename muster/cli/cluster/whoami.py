"""`muster whoami`: the user, role and teams of your token."""

from __future__ import annotations

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.http.views import VersionView
from muster.protocol.text import named


class WhoAmI(msgspec.Struct, frozen=True):
    """The output of `muster whoami --json`."""

    user: str
    role: str
    url: str
    teams: tuple[str, ...] = ()
    address: str = ""


@click.command("whoami")
@json_option
@connection_options
def command(*, as_json: bool) -> None:
    """Print the user that your token belongs to. Jobs that you submit are this user's."""
    client = connect()
    known = client.version()
    if as_json:
        print_json(WhoAmI(known.user, known.role, client.url, known.teams, known.address))
        return
    print_user(known, client.url)


def print_user(known: VersionView, url: str) -> None:
    """Print the user alone on standard output, and the rest as a note."""
    print(safe(known.user))
    teams = f", of {named([safe(team) for team in known.teams])}" if known.teams else ""
    address = f", from {safe(known.address)}" if known.address else ""
    note(f"role {safe(known.role)}{teams}, at {url}{address}")
