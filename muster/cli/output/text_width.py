"""Text in the cells of a terminal: how wide it is, cut or wrapped to a width, and whether anybody
looks at all."""

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
    """Whether what is printed may be coloured: on a terminal, unless somebody said no."""
    context = click.get_current_context(silent=True)
    refused = context is not None and context.meta.get(NO_COLOUR, False)
    plain = refused or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return on_terminal() and not plain


def terminal_width() -> int | None:
    """The width to lay out for; None where whole lines are wanted: in a pipe or a file.

    As shutil.get_terminal_size, whose module brings four compressors with it.
    """
    return terminal_size()[0] if on_terminal() else None


def terminal_size(stream: TextIO | None = None) -> tuple[int | None, int | None]:
    """Columns and lines of the terminal on `stream`, stdout else; None for what nobody knows."""
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
    """How many cells of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, size: int) -> str:
    """`text` in at most `size` cells, an ellipsis where something is missing."""
    if cells(text) <= size:
        return text
    return _head(text, size - 1) + ELLIPSIS if size > 0 else ""


def _head(text: str, size: int) -> str:
    """As much of the beginning of `text` as `size` cells hold."""
    used = 0
    for at, char in enumerate(text):
        used += _char_cells(char)
        if used > size:
            return text[:at]
    return text


def wrap(text: str, width: int | None) -> list[str]:
    """`text` in lines of at most `width` cells, broken between words.

    A word that is wider than a line is broken where it must be, and the break is marked.
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
    """`text` for stdout, wrapped on a terminal: `first` before its first line, `rest` (as many
    blanks, if not given) before the others.
    """
    rest = " " * cells(first) if rest is None else rest
    width = terminal_width()
    room = None if width is None else max(width - max(cells(first), cells(rest)), _WORD_MIN)
    head, *tail = wrap(text, room)
    return "\n".join([first + head, *(rest + line for line in tail)])
