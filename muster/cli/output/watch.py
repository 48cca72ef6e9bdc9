"""`-w`: a view that is drawn again and again, in place on a terminal, and only its changes
elsewhere."""

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
# The other screen, as an editor uses it: what was there before comes back, and a terminal whose
# width changes is no trouble.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
# The last line may fill the width, too, so what is below is erased from a line of its own.
_REST_OF_SCREEN: Final = "\n\x1b[J"
# Terminals that know these show what is between them at once; others pass over them.
_BEGIN: Final = "\x1b[?2026h"
_SHOW: Final = "\x1b[?2026l"


@dataclass(frozen=True, slots=True)
class View(Generic[_T]):
    """What to watch. `fetch` asks for it; `show` prints it; `same` is the part whose change is
    worth a new print in a pipe; `over`: nothing in it can change any more.
    """

    fetch: Callable[[], _T]
    show: Callable[[_T], None]
    same: Callable[[_T], object]
    over: Callable[[_T], bool] = lambda _: False


def watch(view: View[_T]) -> None:
    """Show `view` until it is over, or until Ctrl-C, which ends the command with 130.

    A coordinator that does not answer is said, and asked again. Raises its ClientError after a
    quarter of an hour, or at once where the first answer does not come.
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
    told: list[str] = []
    while True:
        view.show(found)
        sys.stdout.flush()
        seen = view.same(found)
        while view.same(found) == seen:
            if view.over(found):
                return
            time.sleep(_PERIOD_S)
            found = _again(view, lambda text: _tell_once(text, told))


def _tell_once(text: str, told: list[str]) -> None:
    if text not in told:
        told.append(text)
        note(text)


def _again(view: View[_T], trouble: Callable[[str], None]) -> _T:
    """The next answer; what is in its way is told to `trouble`."""
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
    """What `view.show` prints, as lines."""
    held = _Held(sys.stdout)
    with contextlib.redirect_stdout(held):
        view.show(found)
    return held.getvalue().splitlines()


class _Held(io.StringIO):
    """Keeps what is printed, and is as much of a terminal as the stream it stands for."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


class _Screen:
    """The terminal on stdout while something is watched."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def draw(self, lines: list[str]) -> None:
        """Each line over the one before, so that nothing is ever blank."""
        self._lines = lines
        self._write()

    def trouble(self, text: str) -> None:
        """Say something below what is there."""
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
        # First the old line goes: behind a line that fills the width, it would take the last cell.
        frame = "\n".join(_REST_OF_LINE + line for line in lines)
        _put(_BEGIN + _HOME + frame + _REST_OF_SCREEN + _SHOW)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Take the terminal, and give it back whole whatever happens: Ctrl-C, SIGTERM, Ctrl-Z."""
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
    # In one piece and past Python's buffer: half a frame is a flicker.
    sys.stdout.flush()
    data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
