"""`muster version`: the versions of client and coordinator, and whether they are compatible."""

from __future__ import annotations

from importlib import metadata
from typing import Final

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.text_width import paragraph
from muster.client import ClientError
from muster.http.views import VersionView
from muster.protocol.link.control_channel import PROTOCOL_MAX, PROTOCOL_MIN

_DISTRIBUTION: Final = "muster-cluster"


class Versions(msgspec.Struct, frozen=True):
    """The output of `muster version --json`. `coordinator` is None if it does not answer."""

    client: str
    protocol_min: int
    protocol_max: int
    coordinator: VersionView | None
    url: str | None = None
    warning: str | None = None


@click.command("version")
@json_option
@connection_options
def command(*, as_json: bool) -> None:
    """Show the versions of client and coordinator, and warn if they differ too much."""
    own = own_version()
    if not as_json:
        print(own_line(), flush=True)
    try:
        client = connect()
        server = client.version()
    except ClientError:
        if as_json:
            print_json(Versions(own, PROTOCOL_MIN, PROTOCOL_MAX, None))
        raise
    warning = skew(own, server)
    if as_json:
        print_json(Versions(own, PROTOCOL_MIN, PROTOCOL_MAX, server, client.url, warning))
        return
    protocol = _span(server.protocol_min, server.protocol_max)
    text = f"{safe(server.version)}, protocol {protocol}, {client.url}"
    print(paragraph(text, first="coordinator  "))
    if server.user:
        print(f"you          {safe(server.user)} ({safe(server.role)})")
    if warning is not None:
        note(warning)


def own_version() -> str:
    """Return the version that is installed here."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def own_line() -> str:
    """Return the line about the client, printed by `muster version` and `muster --version`."""
    return f"client       {own_version()}, protocol {_span(PROTOCOL_MIN, PROTOCOL_MAX)}"


def skew(own: str, server: VersionView) -> str | None:
    """Return advice on versions that differ, or None if they are compatible.

    Versions with the same first two numbers are compatible. Otherwise the newer side may send what
    the older one does not know.
    """
    if server.protocol_max < PROTOCOL_MIN or server.protocol_min > PROTOCOL_MAX:
        older = "client" if server.protocol_min > PROTOCOL_MAX else "coordinator"
        return f"client and coordinator have no protocol in common: upgrade the {older}"
    ours, theirs = _numbers(own), _numbers(server.version)
    if ours is None or theirs is None or ours == theirs:
        return None
    older, newer = ("client", server.version) if ours < theirs else ("coordinator", own)
    return f"the {older} is older: upgrade it to {safe(newer)}, or some commands may not work"


def _numbers(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}-{most}"
