"""Tables that fit the terminal: columns are cut, wrapped or dropped, the least important ones
first.

Used instead of rich, whose import would take a third of a command's start-up time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.cli.output.format import safe
from muster.cli.output.text_width import cells, cut, terminal_width, use_colour, wrap

_GAP: Final = "  "
_CUT_MIN: Final = 12
_WRAP_MIN: Final = 24
_NAME_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right`: align right, for numbers. On a terminal that is too narrow, in this order:

    `elastic`: shrunk first, cut with an ellipsis or, with `wraps`, wrapped over several lines.
    `name`: may have any length, so it is cut beyond a quarter of the line. `drop`: dropped, the
    highest number first; 0 is never dropped.
    """

    title: str
    right: bool = False
    elastic: bool = False
    wraps: bool = False
    name: bool = False
    drop: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and a function that colours it once its width is known."""

    text: str
    paint: Callable[[str], str] | None = None


Row = Sequence[str | Cell]


def print_table(columns: Sequence[Column], rows: Sequence[Row], indent: str = "") -> None:
    """Print to stdout: fitted to a terminal's width and coloured, otherwise whole and plain."""
    width = terminal_width()
    room = None if width is None else max(width - len(indent), 1)
    for line in table_lines(columns, rows, room, colour=use_colour()):
        print(indent + line if line else line)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, *, colour: bool
) -> list[str]:
    """Return the lines of a table, at most `width` cells wide if its columns can shrink that
    far."""
    made = [[_cell(item) for item in row] for row in rows]
    sizes = [
        max([cells(column.title), *(cells(row[at].text) for row in made)])
        for at, column in enumerate(columns)
    ]
    kept = _fit(columns, sizes, width) if width is not None else list(range(len(columns)))
    lines = _lines([(columns[at], sizes[at], _title(columns[at], sizes[at])) for at in kept])
    for row in made:
        lines += _lines([(columns[at], sizes[at], row[at]) for at in kept], colour=colour)
    return lines


def _title(column: Column, size: int) -> Cell:
    return Cell(cut(column.title, size))


def _fit(columns: Sequence[Column], sizes: list[int], width: int) -> list[int]:
    """Return the columns that remain, and shrink their sizes in place."""
    kept = list(range(len(columns)))

    def excess() -> int:
        return sum(sizes[at] for at in kept) + len(_GAP) * (len(kept) - 1) - width

    def shrink(at: int, least: int) -> None:
        sizes[at] = max(min(sizes[at], sizes[at] - excess()), min(sizes[at], least))

    if excess() > 0:
        for at, column in enumerate(columns):
            if column.name:
                shrink(at, max(_NAME_MIN, width // 4))
        wanted = {at: sizes[at] for at in kept if columns[at].elastic}
        while True:
            for at, size in wanted.items():
                sizes[at] = size
                shrink(at, _WRAP_MIN if columns[at].wraps else _CUT_MIN)
            if excess() <= 0:
                break
            droppable = [at for at in kept if columns[at].drop]
            if not droppable:
                break
            kept.remove(max(droppable, key=lambda at: columns[at].drop))
            wanted = {at: size for at, size in wanted.items() if at in kept}
        for at in reversed(kept):  # nothing is left but to cut harder
            if columns[at].elastic or columns[at].name:
                shrink(at, 4)
    return kept


def _lines(row: Sequence[tuple[Column, int, Cell]], *, colour: bool = False) -> list[str]:
    """Return the lines of a row: one, unless a column wraps."""
    parts = [
        wrap(cell.text, size) if column.wraps else [cut(cell.text, size)]
        for column, size, cell in row
    ]
    made = []
    for number in range(max(map(len, parts))):
        line = []
        for (column, size, cell), texts in zip(row, parts, strict=True):
            text = texts[number] if number < len(texts) else ""
            padding = " " * (size - cells(text))
            shown = cell.paint(text) if cell.paint is not None and colour and text else text
            line.append(padding + shown if column.right else shown + padding)
        made.append(_GAP.join(line).rstrip())
    return made


def _cell(item: str | Cell) -> Cell:
    return Cell(safe(item)) if isinstance(item, str) else Cell(safe(item.text), item.paint)
