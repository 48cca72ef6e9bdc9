"""`muster version`: which software is on either side."""

from __future__ import annotations

from importlib import metadata

import click

from muster.cli.connection import connect, connection_options
from muster.cli.text import note, safe
from muster.protocol.http import VersionView
from muster.protocol.messages import PROTOCOL_MAX, PROTOCOL_MIN

_DISTRIBUTION = "muster-cluster"


@click.command("version")
@connection_options
def command() -> None:
    """Show the versions of client and coordinator, and as whom you are known there."""
    print(
        f"client       {_own_version()}, protocol {_span(PROTOCOL_MIN, PROTOCOL_MAX)}", flush=True
    )
    client = connect()
    server = client.version()
    protocol = _span(server.protocol_min, server.protocol_max)
    print(f"coordinator  {safe(server.version)}, protocol {protocol}, {client.url}")
    if server.user:
        print(f"you          {safe(server.user)} ({safe(server.role)})")
    _warn_of_skew(server)


def _own_version() -> str:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}-{most}"


def _warn_of_skew(server: VersionView) -> None:
    if server.protocol_max < PROTOCOL_MIN or server.protocol_min > PROTOCOL_MAX:
        older = "client" if server.protocol_min > PROTOCOL_MAX else "coordinator"
        note(f"client and coordinator have no protocol in common: upgrade the {older}")
