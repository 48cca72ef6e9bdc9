"""Text for people: nothing in it moves their cursor, and numbers are as short as they are clear."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TextIO

import click

from muster.protocol.states import ENDED_STATES, JobState

_GOOD = {JobState.SUCCEEDED, JobState.RUNNING}
_BAD = {JobState.FAILED, JobState.LOST, JobState.TIMEOUT}


def safe(text: str) -> str:
    """`text` with control characters, terminal escapes among them, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode("ascii")
        for char in text
    )


def note(text: str) -> None:
    """Tell the user something; never on stdout, where programs read.

    On a terminal lines are broken between words; what is indented stays so. Where nobody reads it,
    or it finds no room, that changes nothing of what is done.
    """
    _print(f"muster: {text}")


def show_usage(error: click.ClickException) -> None:
    """What click says of wrong usage, its lines broken as those of a note."""
    text = io.StringIO()
    error.show(text)
    _print(text.getvalue().rstrip("\n"))


def _print(text: str) -> None:
    try:
        print(_wrapped(text), file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """What is written to a standard stream goes nowhere from now on, what it holds back as well."""
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
    """A length of time (seconds) in at most two units: `3s`, `4m10s`, `2h05m`, `3d04h`."""
    whole = max(int(_seconds(time)), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def length(time: float | timedelta) -> str:
    """As `span`, for times of the coordinator's own: below ten seconds, tenths matter."""
    seconds = _seconds(time)
    return f"{max(seconds, 0.0):.1f}s" if seconds < 10 else span(seconds)


def _seconds(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def moment(at: datetime) -> str:
    """RFC 3339 with `Z`, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gib(size: int) -> str:
    """Bytes in the unit in which memory is sold."""
    return f"{size / 2**30:.0f}GiB"


def coloured(state: JobState, text: str) -> str:
    """`text` in the colour of a state, for where colour is wanted."""
    if state in _GOOD:
        return click.style(text, fg="green")
    if state in _BAD:
        return click.style(text, fg="red")
    return click.style(text, dim=True) if state in ENDED_STATES else click.style(text, fg="yellow")


def painted(colour: str | None) -> Callable[[str], str] | None:
    """What makes a text of that colour; None where it stays plain."""
    return None if colour is None else lambda text: click.style(text, fg=colour)
