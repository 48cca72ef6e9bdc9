"""Columns that fit the terminal.

Sixty lines of our own, because the start of rich costs a third of what a whole command may take.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.cli.text import safe

_GAP = "  "
_ELASTIC_MIN = 12


@dataclass(frozen=True, slots=True)
class Column:
    """`right`: numbers. `elastic`: the one that is cut when the terminal is too narrow."""

    title: str
    right: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and how to colour it once its width is known."""

    text: str
    paint: Callable[[str], str] | None = None


Row = Sequence[str | Cell]


def print_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print to stdout: on a terminal cut to its width and coloured, elsewhere whole and plain."""
    on_terminal = sys.stdout.isatty()
    width = _terminal_width() if on_terminal else None
    colour = on_terminal and not os.environ.get("NO_COLOR")
    print("\n".join(table_lines(columns, rows, width, colour=colour)))


def _terminal_width() -> int | None:
    """As shutil.get_terminal_size, whose module brings four compressors with it."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"]) or None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except OSError:
        return None


def table_lines(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, *, colour: bool
) -> list[str]:
    """The lines of a table, at most `width` cells wide where an elastic column can give way."""
    cells = [[_cell(item) for item in row] for row in rows]
    sizes = [
        max([_width(column.title), *(_width(row[at].text) for row in cells)])
        for at, column in enumerate(columns)
    ]
    for at, column in enumerate(columns):
        if column.elastic and width is not None:
            others = sum(sizes) - sizes[at] + len(_GAP) * (len(sizes) - 1)
            sizes[at] = min(sizes[at], max(width - others, _ELASTIC_MIN))
    heading = [Cell(column.title) for column in columns]
    return [_line(columns, sizes, row, colour=colour) for row in [heading, *cells]]


def _line(
    columns: Sequence[Column], sizes: Sequence[int], row: Sequence[Cell], *, colour: bool
) -> str:
    parts = []
    for column, size, cell in zip(columns, sizes, row, strict=True):
        text = _cut(cell.text, size)
        padding = " " * (size - _width(text))
        shown = cell.paint(text) if cell.paint is not None and colour else text
        parts.append(padding + shown if column.right else shown + padding)
    return _GAP.join(parts).rstrip()


def _cell(item: str | Cell) -> Cell:
    return Cell(safe(item)) if isinstance(item, str) else Cell(safe(item.text), item.paint)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, size: int) -> str:
    if _width(text) <= size:
        return text
    kept, used = "", 1  # one cell for the ellipsis
    for char in text:
        used += _char_width(char)
        if used > size:
            break
        kept += char
    return kept + "…"
