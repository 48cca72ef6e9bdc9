"""The options that locate the coordinator, and the client made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from muster.cli.errors import DetachedError
from muster.cli.output.format import note, safe, span
from muster.cli.output.text_width import NO_COLOUR
from muster.client import Client, ClientError, load_settings

_F = TypeVar("_F", bound=Callable[..., Any])
_URL: Final = "muster.url"
_CONFIG: Final = "muster.config"
_TOKEN_FILE: Final = "muster.token_file"  # noqa: S105 - the name of a setting

# Shorter outages are over before the user has read a note about them.
_WORTH_A_NOTE_S: Final = 5.0


def connection_options(command: _F) -> _F:
    """Add `--no-color` and the options that `connect` reads: `--config`, `--token-file` and
    `--url`."""

    def keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
        def callback(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
            context.meta[name] = value

        return callback

    file = click.Path(path_type=Path)
    for option in (
        click.option(
            "--no-color",
            is_flag=True,
            expose_value=False,
            callback=keep(NO_COLOUR),
            help="Disable colours, as NO_COLOR does.",
        ),
        click.option(
            "--config",
            type=file,
            metavar="FILE",
            expose_value=False,
            callback=keep(_CONFIG),
            help="The client's configuration file (default: MUSTER_CONFIG).",
        ),
        click.option(
            "--token-file",
            type=file,
            metavar="FILE",
            expose_value=False,
            callback=keep(_TOKEN_FILE),
            help="File with your token (default: MUSTER_TOKEN).",
        ),
        click.option(
            "--url",
            metavar="URL",
            expose_value=False,
            callback=keep(_URL),
            help="URL of the coordinator (default: MUSTER_URL).",
        ),
    ):
        command = option(command)
    return command


def connect() -> Client:
    """Return the client for the running command's options, the environment and the client's
    file."""
    meta = click.get_current_context().meta
    settings = load_settings(
        os.environ, url=meta.get(_URL), token_file=meta.get(_TOKEN_FILE), config=meta.get(_CONFIG)
    )
    for warning in settings.warnings:
        note(safe(warning))
    return Client.of(settings, on_trouble=_trouble)


def _trouble(error: ClientError, patience_s: float) -> None:
    if patience_s > _WORTH_A_NOTE_S:
        note(f"{safe(str(error))}; retrying for {span(patience_s)}")


@contextmanager
def detaching(*jobs: int, doing: str = "logs -f") -> Iterator[None]:
    """Turn Ctrl-C into DetachedError. Its message names the commands that reattach to or cancel the
    jobs."""
    try:
        yield
    except KeyboardInterrupt:
        ids = " ".join(str(job) for job in jobs)
        goes_on = f"job {ids} continues" if len(jobs) == 1 else f"jobs {ids} continue"
        raise DetachedError(
            f"detached; {goes_on}: muster {doing} {ids} | muster cancel {ids}"
        ) from None
