"""The edge of the command line: whatever happens inside becomes a sentence and an exit code.

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
    # A start makes much and drops little: a quarter of it would be the collector's, which `verbs`
    # lets go on.
    gc.disable()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; nothing is raised, no traceback is shown."""
    try:
        from muster.daemon.surroundings import prepare_streams

        prepare_streams()
        from muster.cli.verbs import invoke

        code = invoke(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_DETACHED
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:
        if os.environ.get("MUSTER_DEBUG"):
            raise
        return _failed(error)
    return code


def _failed(error: Exception) -> int:
    import click

    if isinstance(error, click.ClickException):
        from muster.cli.text import show_usage

        show_usage(error)
        return error.exit_code

    from muster.cli.complaints import Complaint, complain

    complaint: Complaint = complain(error)
    _say(complaint.text)
    return complaint.code


def _say(text: str) -> None:
    try:
        from muster.cli.text import note

        note(text)
    except OSError:
        pass  # nobody reads it


def _reader_gone() -> int:
    """`muster logs 42 | head` has what it wanted. What is still buffered goes nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    return 0
