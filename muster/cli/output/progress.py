"""Progress of a long step on standard error: one line redrawn, or a line now and then."""

from __future__ import annotations

from time import monotonic
from typing import Final, TextIO

from muster.bundle.scan import size_text
from muster.cli.output.format import note

_QUIET_S: Final = 1.0
"""A shorter step shows nothing."""
_REDRAW_S: Final = 0.1
_LINE_S: Final = 10.0


class Progress:
    """Shows how many bytes of a total are done."""

    def __init__(self, doing: str, stream: TextIO) -> None:
        self._doing = doing
        self._stream = stream
        self._terminal = stream.isatty()
        self._next = monotonic() + _QUIET_S
        self._drawn = 0

    def show(self, done: int, total: int) -> None:
        """Show it, unless that was a moment ago."""
        now = monotonic()
        if now < self._next:
            return
        line = f"{self._doing}: {size_text(done)} of {size_text(total)}"
        if self._terminal:
            print(f"\r{line.ljust(self._drawn)}", end="", file=self._stream, flush=True)
            self._drawn = len(line)
        else:
            note(line)
        self._next = now + (_REDRAW_S if self._terminal else _LINE_S)

    def end(self) -> None:
        """Erase the line."""
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=self._stream, flush=True)
            self._drawn = 0
