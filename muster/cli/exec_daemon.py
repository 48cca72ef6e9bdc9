"""The verbs that run a daemon: they become it, and import nothing of it."""

from __future__ import annotations

import os
import sys

import click


def daemon_command(verb: str, package: str, *before: str) -> click.Command:
    """A verb that turns this process into `python -m package` with `before` and all of its own
    arguments."""

    @click.command(
        verb,
        help=f"Becomes `{' '.join(['python -m', package, *before])}`, with all of its arguments.",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(*, arguments: tuple[str, ...]) -> None:
        # -P: a folder of the same name where the user happens to be must not become the daemon.
        os.execv(sys.executable, [sys.executable, "-P", "-m", package, *before, *arguments])

    return command
