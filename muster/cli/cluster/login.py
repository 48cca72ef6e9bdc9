"""`muster login`: write the client's file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from muster.cli.cluster.whoami import print_user
from muster.cli.errors import RefusedError
from muster.cli.output.format import note, safe
from muster.client.client import Client
from muster.client.config import client_file_path, given_settings
from muster.daemon.durable_files import write_atomic

_PRIVATE = 0o600


@click.command("login")
@click.argument("url", metavar="URL")
@click.argument("token", metavar="[TOKEN]", required=False)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="The CA of the coordinator's certificate (PEM).",
)
@click.option("--force", is_flag=True, help="Replace the file of another coordinator.")
def command(*, url: str, token: str | None, ca: Path | None, force: bool) -> None:
    """Check a token at the coordinator, and write both to the client's file (mode 0600).

    Without TOKEN, asks for it, which keeps it out of the shell history and the process list.
    """
    if token is None:
        token = click.prompt("Token", hide_input=True, err=True)
    settings = given_settings(os.environ, url, token.strip(), ca)
    path = client_file_path(os.environ)
    if not force and _other_url(path, settings.url):
        raise RefusedError(
            f"{safe(str(path))} is for another coordinator; nothing was written\n"
            "  name another file with MUSTER_CONFIG, or replace it with --force"
        )
    known = Client.of(settings).version()
    fields = {"url": settings.url, "token": settings.token} | ({"ca": str(ca)} if ca else {})
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    write_atomic(path, text.encode(), _PRIVATE)
    note(f"wrote {safe(str(path))}")
    print_user(known, settings.url)


def _other_url(path: Path, url: str) -> bool:
    """True if the file names another coordinator, or cannot be read as a client's file."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True
    known = [line.partition(": ")[2].strip("\"' ") for line in lines if line.startswith("url:")]
    return [each.rstrip("/") for each in known] != [url]
