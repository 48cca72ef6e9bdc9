"""Tables: aligned, cut to the terminal, plain where nobody looks."""

from muster.cli.output.table import Cell, Column, table_lines

COLUMNS = (Column("ID", right=True), Column("NAME"), Column("REASON", elastic=True))


def lines(
    *rows: tuple[str | Cell, ...], width: int | None = None, colour: bool = False
) -> list[str]:
    return table_lines(COLUMNS, rows, width, colour=colour)


def test_columns_are_aligned_and_lines_end_with_their_text() -> None:
    assert lines(("1", "a", "short"), ("200", "longer", "")) == [
        " ID  NAME    REASON",
        "  1  a       short",
        "200  longer",
    ]


def test_the_elastic_column_gives_way() -> None:
    made = lines(("1", "a", "a reason that is far too long for this"), width=30)
    assert made[1] == " 1  a     a reason that is fa…"
    assert max(map(len, made)) == 30


def test_wide_characters_take_two_cells() -> None:
    made = lines(("1", "日本", "x"), ("2", "e\u0301", "y"), ("3", "abcd", "z"))
    assert made[1:] == [" 1  日本  x", " 2  e\u0301     y", " 3  abcd  z"]
    assert lines(("1", "a", "日本日本日本日本日本"), width=22)[1] == " 1  a     日本日本日…"


def test_colour_changes_no_width() -> None:
    cell = Cell("a", lambda text: f"<{text}>")
    assert lines(("1", cell, "x"), colour=True)[1] == " 1  <a>     x"
    assert lines(("1", cell, "x"))[1] == " 1  a     x"
