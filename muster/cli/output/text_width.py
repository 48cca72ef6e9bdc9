"""Text in terminal cells: its width, cutting and wrapping, and whether stdout is a terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Final, TextIO

import click

NO_COLOUR: Final = "muster.no_color"
ELLIPSIS: Final = "…"
_WORD_MIN: Final = 8


def on_terminal() -> bool:
    return sys.stdout.isatty()


def use_colour() -> bool:
    """True if output may be coloured: stdout is a terminal, and the user has not disabled
    colours."""
    context = click.get_current_context(silent=True)
    refused = context is not None and context.meta.get(NO_COLOUR, False)
    plain = refused or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return on_terminal() and not plain


def terminal_width() -> int | None:
    """Return the width to fit output to. Returns None in a pipe or a file, where lines stay whole.

    Replaces shutil.get_terminal_size, because shutil imports four compression modules.
    """
    return terminal_size()[0] if on_terminal() else None


def terminal_size(stream: TextIO | None = None) -> tuple[int | None, int | None]:
    """Return columns and lines of the terminal on `stream` (default stdout); None for each unknown
    one."""
    try:
        size = os.get_terminal_size((stream or sys.stdout).fileno())
        columns, lines = size.columns, size.lines
    except (OSError, ValueError):
        columns, lines = 0, 0
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal():
        columns = int(chosen)
    return columns or None, lines or None


def cells(text: str) -> int:
    """Return the number of terminal cells that `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, size: int) -> str:
    """Return `text` in at most `size` cells, with an ellipsis if it is cut."""
    if cells(text) <= size:
        return text
    return _head(text, size - 1) + ELLIPSIS if size > 0 else ""


def _head(text: str, size: int) -> str:
    """Return as much of the beginning of `text` as fits in `size` cells."""
    used = 0
    for at, char in enumerate(text):
        used += _char_cells(char)
        if used > size:
            return text[:at]
    return text


def wrap(text: str, width: int | None) -> list[str]:
    """Wrap `text` between words into lines of at most `width` cells.

    A word that is wider than a line is split, with an ellipsis at the split.
    """
    if width is None or cells(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cells(longer) <= width:
            line = longer
            continue
        if line and (cells(word) <= width or width - cells(line) <= _WORD_MIN):
            lines.append(line)
            line = word
        else:
            line = longer
        while cells(line) > width:
            part = _head(line, width - 1)
            lines.append(part + ELLIPSIS if part else line[0])
            line = line[len(part) or 1 :]
    return [*lines, line] if line else lines


def paragraph(text: str, *, first: str = "", rest: str | None = None) -> str:
    """Return `text` for stdout, wrapped on a terminal. `first` precedes its first line, `rest` the
    others (default: as many blanks)."""
    rest = " " * cells(first) if rest is None else rest
    width = terminal_width()
    room = None if width is None else max(width - max(cells(first), cells(rest)), _WORD_MIN)
    head, *tail = wrap(text, room)
    return "\n".join([first + head, *(rest + line for line in tail)])
