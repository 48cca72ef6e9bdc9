"""Entry point of the command line: turns every error into a message and an exit code.

Imports almost nothing at the top, so that even an interrupt during the start ends quietly.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_USAGE = 2
EXIT_FAILED = 125  # muster.protocol.outcome.EXIT_CLIENT, not worth its import for `--help`
EXIT_DETACHED = 130


def main() -> NoReturn:
    """The console script `muster`."""
    # Because start-up allocates much and frees little, garbage collection would take a quarter of
    # it. `commands` enables it again.
    gc.disable()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Raises nothing and prints no traceback."""
    try:
        from muster.daemon.process_env import prepare_streams

        prepare_streams()
        from muster.cli.commands import invoke

        code = invoke(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        code = EXIT_DETACHED
    except BrokenPipeError:
        code = 0  # `muster logs 42 | head` has all it needs
    except Exception as error:
        if os.environ.get("MUSTER_DEBUG"):
            raise
        code = _failed(error)
    return _flushed(code)


def _failed(error: Exception) -> int:
    import click

    if isinstance(error, click.ClickException):
        from muster.cli.output.format import show_usage

        show_usage(error)
        return error.exit_code

    from muster.cli.errors import CliError, explain_error

    complaint: CliError = explain_error(error)
    _say(complaint.text)
    return complaint.code


def _say(text: str) -> None:
    from muster.cli.output.format import note

    note(text)


def _flushed(code: int) -> int:
    """Flush the standard streams and return the exit code. Python would flush them again on exit,
    and fail with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            from muster.cli.output.format import give_up

            give_up(stream)
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                code = code or _failed(error)
    return code
