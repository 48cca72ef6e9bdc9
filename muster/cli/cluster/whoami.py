"""`muster whoami`: the user and role of your token."""

from __future__ import annotations

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json


class WhoAmI(msgspec.Struct, frozen=True):
    """The output of `muster whoami --json`."""

    user: str
    role: str
    url: str


@click.command("whoami")
@json_option
@connection_options
def command(*, as_json: bool) -> None:
    """Print the user that your token belongs to. Jobs that you submit are this user's."""
    client = connect()
    known = client.version()
    if as_json:
        print_json(WhoAmI(known.user, known.role, client.url))
        return
    print(safe(known.user))
    note(f"a token of class {safe(known.role)}, at {client.url}")
