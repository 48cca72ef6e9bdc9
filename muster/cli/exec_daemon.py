"""Commands that replace this process with a daemon, without importing it."""

from __future__ import annotations

import os
import sys

import click


def daemon_command(verb: str, package: str, *before: str) -> click.Command:
    """Return a command that executes `python -m package` with `before` and the command's own
    arguments."""

    @click.command(
        verb,
        help=f"Run `{' '.join(['python -m', package, *before])}` with the same arguments.",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(*, arguments: tuple[str, ...]) -> None:
        # -P: otherwise a folder of that name in the user's current directory would be run as the
        # daemon.
        os.execv(sys.executable, [sys.executable, "-P", "-m", package, *before, *arguments])

    return command
