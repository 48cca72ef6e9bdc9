"""Text for people: escaped for terminals, with short numbers."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TextIO

import click

from muster.cli.output.text_width import paragraph
from muster.protocol.states import ENDED_STATES, JobState
from muster.protocol.text import named

_GOOD = {JobState.SUCCEEDED, JobState.RUNNING}
_BAD = {JobState.FAILED, JobState.LOST, JobState.TIMEOUT}


def safe(text: str) -> str:
    """Return `text` with control characters, including terminal escapes, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode("ascii")
        for char in text
    )


def print_line(text: str, label: str = "", *, indent: str = "  ") -> None:
    """Print an indented line, wrapped to the terminal."""
    print(paragraph(safe(text), first=f"{indent}{label}"))


def unconfirmed(nodes: Sequence[str]) -> str:
    """Return a sentence about the nodes that do not follow a changed time limit yet."""
    has, keeps = ("has", "keeps") if len(nodes) == 1 else ("have", "keep")
    return f"{named(nodes)} {has} not confirmed the new one yet and {keeps} the old one"


def note(text: str) -> None:
    """Print a message to stderr, because stdout is for programs.

    On a terminal, lines wrap between words and keep their indentation. If nobody reads stderr or
    its disk is full, the command continues unaffected.
    """
    _print(f"muster: {text}")


def show_usage(error: click.ClickException) -> None:
    """Print click's usage error, wrapped like a note."""
    text = io.StringIO()
    error.show(text)
    _print(text.getvalue().rstrip("\n"))


def _print(text: str) -> None:
    try:
        print(_wrapped(text), file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Redirect a standard stream to /dev/null, including what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _wrapped(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    from muster.cli.output.text_width import terminal_size, wrap

    width = terminal_size(sys.stderr)[0]
    lines = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        indent = line[: len(line) - len(words)]
        room = None if width is None else max(width - len(indent), 1)
        lines += [indent + part for part in wrap(words, room)]
    return "\n".join(lines)


def span(time: float | timedelta) -> str:
    """Format a time span (seconds) in at most two units: `3s`, `4m10s`, `2h05m`, `3d04h`."""
    whole = max(int(_seconds(time)), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def length(time: float | timedelta) -> str:
    """Format a time span as `span` does, but with tenths below ten seconds, for the coordinator's
    times."""
    seconds = _seconds(time)
    return f"{max(seconds, 0.0):.1f}s" if seconds < 10 else span(seconds)


def _seconds(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def moment(at: datetime) -> str:
    """Format a time as RFC 3339 with `Z`, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gib(size: int) -> str:
    """Format bytes in GiB."""
    return f"{size / 2**30:.0f}GiB"


def coloured(state: JobState, text: str) -> str:
    """Return `text` in the colour of a state."""
    if state in _GOOD:
        return click.style(text, fg="green")
    if state in _BAD:
        return click.style(text, fg="red")
    return click.style(text, dim=True) if state in ENDED_STATES else click.style(text, fg="yellow")


def painted(colour: str | None) -> Callable[[str], str] | None:
    """Return a function that colours a text. Returns None if there is no colour."""
    return None if colour is None else lambda text: click.style(text, fg=colour)
