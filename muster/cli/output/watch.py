"""`-w`: redraw a view in place on a terminal; elsewhere, print it when it changes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final, Generic, TextIO, TypeVar

import click

from muster.cli.output.format import note, safe
from muster.cli.output.text_width import cut, on_terminal, terminal_size
from muster.client import ClientError
from muster.client.endpoints import WATCH_S
from muster.protocol.outcome import EXIT_DETACHED

_T = TypeVar("_T")

_PERIOD_S: Final = 1.0
# Use the alternate screen, as editors do: it restores the previous content, and copes with changes
# of the width.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
# The last line may fill the width, so the rest is erased from the start of the next line.
_REST_OF_SCREEN: Final = "\n\x1b[J"
# Synchronized output: terminals that support it show the frame at once; others ignore it.
_BEGIN: Final = "\x1b[?2026h"
_SHOW: Final = "\x1b[?2026l"


@dataclass(frozen=True, slots=True)
class View(Generic[_T]):
    """A view to watch. `fetch` gets the data and `show` prints it. `same` returns the part whose
    change triggers a new print in a pipe. `over`: whether nothing in it can change any more."""

    fetch: Callable[[], _T]
    show: Callable[[_T], None]
    same: Callable[[_T], object]
    over: Callable[[_T], bool] = lambda _: False


def watch(view: View[_T]) -> None:
    """Show `view` until it is over, or until Ctrl-C, which ends the command with 130.

    If the coordinator does not answer, reports that and retries. Raises its ClientError after a
    quarter of an hour, or at once if the first call fails.
    """
    found = view.fetch()
    try:
        if not on_terminal():
            _print_changes(view, found)
            return
        screen = _Screen()
        with screen.on():
            while not view.over(found):
                screen.draw(_rendered(view, found))
                time.sleep(_PERIOD_S)
                found = _again(view, screen.trouble)
    except KeyboardInterrupt:
        if on_terminal():
            view.show(found)
        raise click.exceptions.Exit(EXIT_DETACHED) from None
    view.show(found)


def _print_changes(view: View[_T], found: _T) -> None:
    noted: list[str] = []
    while True:
        view.show(found)
        sys.stdout.flush()
        seen = view.same(found)
        while view.same(found) == seen:
            if view.over(found):
                return
            time.sleep(_PERIOD_S)
            found = _again(view, lambda text: _note_once(text, noted))


def _note_once(text: str, noted: list[str]) -> None:
    if text not in noted:
        noted.append(text)
        note(text)


def _again(view: View[_T], trouble: Callable[[str], None]) -> _T:
    """Return the next answer, retrying failed calls. Failures are reported to `trouble`."""
    failing = 0.0
    while True:
        try:
            return view.fetch()
        except ClientError as error:
            if not error.passing or failing > WATCH_S:
                raise
            trouble(f"{safe(str(error))}; still trying")
        time.sleep(_PERIOD_S)
        failing += _PERIOD_S


def _rendered(view: View[_T], found: _T) -> list[str]:
    """Return the output of `view.show` as lines."""
    held = _Held(sys.stdout)
    with contextlib.redirect_stdout(held):
        view.show(found)
    return held.getvalue().splitlines()


class _Held(io.StringIO):
    """A buffer that reports the terminal properties of the stream it replaces."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


class _Screen:
    """The terminal on stdout while a view is watched."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def draw(self, lines: list[str]) -> None:
        """Draw each line over the old one, so that the screen never flickers blank."""
        self._lines = lines
        self._write()

    def trouble(self, text: str) -> None:
        """Show a message below the view."""
        self._write(text)

    def _write(self, below: str = "") -> None:
        columns, height = terminal_size()
        room = (height or 24) - (2 if below else 1)
        lines = self._lines
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], cut(f"... and {hidden} more", columns or 80)]
        if below:
            lines = [*lines, cut(below, columns or 80)]
        # Erase a line before drawing it: after a line that fills the width, it would erase the last
        # cell.
        frame = "\n".join(_REST_OF_LINE + line for line in lines)
        _put(_BEGIN + _HOME + frame + _REST_OF_SCREEN + _SHOW)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Take over the terminal, and restore it in any case: Ctrl-C, SIGTERM, Ctrl-Z."""
        kept = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, _end),
                (signal.SIGHUP, _end),
                (signal.SIGTSTP, self._suspend),
            )
        }
        _put(_ENTER)
        try:
            yield
        finally:
            _put(_LEAVE)
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        _put(_LEAVE)
        ours = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when the shell continues us
        signal.signal(number, ours)
        _put(_ENTER)
        self._write()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _put(text: str) -> None:
    # Write in one piece, bypassing Python's buffer, because partial frames flicker.
    sys.stdout.flush()
    data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
