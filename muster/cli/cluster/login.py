"""`muster login`: write the client's file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import click

from muster.cli.cluster.printed_lines import LOGIN_PREFIX
from muster.cli.cluster.whoami import print_user
from muster.cli.errors import RefusedError
from muster.cli.output.format import note, safe
from muster.client.client import Client
from muster.client.config import check_url, client_file_path, given_settings
from muster.client.errors import ClientError
from muster.daemon.durable_files import write_atomic
from muster.http.views import VersionView

_PRIVATE: Final = 0o600
_OTHERS: Final = (
    "  name another file with MUSTER_CONFIG, or replace it with --force, which in the line that "
    "begins with curl is: ... sh -s -- --force"
)


class _Pinned(NamedTuple):
    """A token with the SHA-256 of the CA by which the coordinator is known: `ml1.SHA256.TOKEN`."""

    sha256: str
    token: str


@click.command("login")
@click.argument("url", metavar="URL")
@click.argument("token", metavar="[TOKEN]", required=False)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="The CA of the coordinator's certificate (PEM).",
)
@click.option("--force", is_flag=True, help="Replace the file of another coordinator or user.")
def command(*, url: str, token: str | None, ca: Path | None, force: bool) -> None:
    """Check a token at the coordinator, and write both to the client's file (mode 0600).

    Without TOKEN, asks for it or reads it from standard input, which keeps it out of the shell
    history and the process list. If it begins with `ml1.`, it holds the SHA-256 of the
    coordinator's CA: the CA is fetched and compared before the token is sent, and written beside
    the client's file.
    """
    if token is None:
        token = _asked()
    pinned = _pinned(token.strip())
    if pinned is not None and ca is not None:
        raise click.UsageError("the token names the CA already: leave --ca out")
    path = client_file_path(os.environ)
    settings = given_settings(os.environ, url, pinned.token if pinned else token.strip(), ca)
    if not force and _other_url(path, settings.url):
        raise RefusedError(
            f"{safe(str(path))} is for another coordinator; nothing was written\n{_OTHERS}"
        )
    pem = None
    if pinned is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pem = _fetched_ca(settings.url, pinned.sha256)
    known = _checked_with(settings.url, settings.token, pem, ca, path.parent)
    before = None if force else _token_in(path)
    if before is not None and before != settings.token:
        with contextlib.suppress(ClientError):
            other = _checked_with(settings.url, before, pem, ca, path.parent).user
            if other != known.user:
                raise RefusedError(
                    f"{safe(str(path))} has a token of {safe(other)}; nothing was written\n"
                    f"{_OTHERS}"
                )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if pem is not None:
        ca = path.with_suffix(".ca.pem").absolute()
        write_atomic(ca, pem, _PRIVATE)
        note(f"wrote {safe(str(ca))}")
    fields = {"url": settings.url, "token": settings.token} | ({"ca": str(ca)} if ca else {})
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    write_atomic(path, text.encode(), _PRIVATE)
    note(f"wrote {safe(str(path))}")
    print_user(known, settings.url)


def _asked() -> str:
    """Return the token from a prompt or, if no terminal is there, from standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    return str(click.prompt("Token", hide_input=True, err=True))


def _pinned(text: str) -> _Pinned | None:
    prefix, dot, rest = text.partition(".")
    if prefix != LOGIN_PREFIX or not dot:
        return None
    sha256, _, token = rest.partition(".")
    if len(sha256) != hashlib.sha256().digest_size * 2 or not token:
        raise click.UsageError(
            "the token is cut off: it is ml1.SHA256.SECRET, as `muster token create` prints it"
        )
    return _Pinned(sha256, token)


def _fetched_ca(url: str, sha256: str) -> bytes:
    """Fetch the CA, which proves itself by its digest. Raises RefusedError."""
    from muster.client.pinned_ca import CaError, fetch_ca

    parts = check_url(url)
    if parts.scheme != "https":
        raise RefusedError(f"{url} has no TLS, and this token is for a coordinator with TLS")
    try:
        return fetch_ca(parts.hostname or "", parts.port or 443, sha256)
    except CaError as error:
        raise RefusedError(str(error)) from error


def _checked_with(
    url: str, token: str, pem: bytes | None, ca: Path | None, folder: Path
) -> VersionView:
    """Check the token over a connection that the CA vouches for: `pem`, or the one in `ca`."""
    if pem is None:
        return Client.of(given_settings(os.environ, url, token, ca)).version()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="ca.", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        return Client.of(given_settings(os.environ, url, token, Path(file.name))).version()


def _token_in(path: Path) -> str | None:
    """Return the token of a client's file; None without one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    known = [line.partition(": ")[2].strip("\"' ") for line in lines if line.startswith("token:")]
    return known[0] if known else None


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
