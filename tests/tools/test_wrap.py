"""Pages are wrapped at 100 columns, and stay the same pages."""

from __future__ import annotations

import re

import pytest

from tools.docs.wrap import COLUMNS, wrapped

SENTENCE = "The coordinator commits the facts of a batch before it carries out any effect of them. "


def test_a_long_paragraph_is_broken_and_keeps_its_words() -> None:
    page = f"{SENTENCE * 4}\n\nA short one\nstays.\n"
    made = wrapped(page)
    assert max(map(len, made.splitlines())) <= COLUMNS
    assert made.split() == page.split()
    assert made.endswith("\n\nA short one\nstays.\n")


def test_an_item_of_a_list_hangs_below_its_text() -> None:
    lines = wrapped(f"- {SENTENCE * 2}\n- short\n  10. {SENTENCE * 2}\n").splitlines()
    assert [re.match(r"\s*(- |10\. )?", line)[0] for line in lines] == [  # type: ignore[index]
        "- ",
        "  ",
        "- ",
        "  10. ",
        "      ",
    ]


@pytest.mark.parametrize(
    "block",
    [
        f"| {SENTENCE * 3} |",
        f"# {SENTENCE * 3}",
        f"```\n{SENTENCE * 3}\n\n{SENTENCE * 3}\n```",
        f"    {SENTENCE * 3}",
        f"> {SENTENCE * 3}",
    ],
)
def test_tables_headings_code_and_quotes_stay(block: str) -> None:
    assert wrapped(f"Text.\n\n{block}\n") == f"Text.\n\n{block}\n"


@pytest.mark.parametrize("whole", ["`a long span of code`", "[the text of a link](a/page.md)"])
def test_spans_of_code_and_links_are_not_broken(whole: str) -> None:
    for length in range(COLUMNS - 40, COLUMNS + 1):
        assert whole in wrapped(f"{'x' * length} {whole} {SENTENCE}")


@pytest.mark.parametrize("mark", ["-", "1.", "#", ">", "+"])
def test_no_line_begins_with_what_markdown_would_take_for_a_mark(mark: str) -> None:
    for length in range(COLUMNS - 20, COLUMNS + 1):
        lines = wrapped(f"{'x' * length} {mark} {SENTENCE}").splitlines()
        assert not any(line.startswith(mark) for line in lines)


def test_a_wrapped_page_stays() -> None:
    once = wrapped(f"- {SENTENCE * 5}\n\n{SENTENCE * 5}\n")
    assert wrapped(once) == once
