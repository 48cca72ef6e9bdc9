"""`muster logout`: remove the client's file."""

from __future__ import annotations

import os

import click

from muster.cli.output.format import note, safe
from muster.client.config import client_file_path


@click.command("logout")
def command() -> None:
    """Remove the client's file, which holds your token. The token itself stays valid."""
    path = client_file_path(os.environ)
    try:
        path.unlink()
    except FileNotFoundError:
        note(f"there is no {safe(str(path))}")
        return
    note(
        f"removed {safe(str(path))}; the token stays valid until you revoke it elsewhere with: "
        "muster token revoke ID"
    )
