"""Wrapping of Markdown pages at 100 columns.

Only paragraphs and list items with a line that is too long change. Tables, headings, code and HTML
stay as they are. A code span or a link is never broken.

    python -m tools.docs.wrap README.md CHANGELOG.md docs/how-to/*.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 100
_ITEM: Final = re.compile(r"(\s*)([-*+] |\d+[.)] )?")
_VERBATIM: Final = ("|", "#", "<", ">", "![", "[![", ":::")
_FENCE: Final = "```"
# At the beginning of a line these would begin a list, a heading, a quote or a table.
_MARKUP: Final = re.compile(r"[-*+>|]$|\d+[.)]$|#|\||```")


def wrapped(page: str) -> str:
    """Return the page with no line over 100 columns that could be broken."""
    return "\n".join(
        line
        for verbatim, block in _blocks(page.split("\n"))
        for line in (block if verbatim else _lines(block))
    )


def _blocks(lines: Iterable[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield paragraphs and list items as (False, lines), and other lines as (True, [line])."""
    block: list[str] = []
    in_code = False
    for line in lines:
        text = line.strip()
        fence = text.startswith(_FENCE)
        indented = line.startswith("    ") and not block
        verbatim = in_code or fence or indented or not text or text.startswith(_VERBATIM)
        mark = _ITEM.match(line)
        if block and (verbatim or (mark is not None and mark[2])):
            yield False, block
            block = []
        in_code ^= fence
        if verbatim:
            yield True, [line]
        else:
            block.append(line)
    if block:
        yield False, block


def _lines(block: list[str]) -> list[str]:
    if max(map(len, block)) <= COLUMNS:
        return block
    mark = _ITEM.match(block[0])
    indent, bullet = (mark[1], mark[2] or "") if mark is not None else ("", "")
    hanging = " " * (len(block[1]) - len(block[1].lstrip())) if block[1:] else ""
    hanging = hanging or indent + " " * len(bullet)
    text = " ".join(line.strip() for line in block).removeprefix(bullet)
    made, line = [], ""
    for word in _words(text):
        if line and len(line) + 1 + len(word) > COLUMNS and not _MARKUP.match(word):
            made.append(line)
            line = hanging + word
        else:
            line = f"{line} {word}" if line else indent + bullet + word
    return [*made, line]


def _words(text: str) -> Iterator[str]:
    """Yield the parts between which a line may be broken."""
    part = ""
    for word in text.split():
        part = f"{part} {word}" if part else word
        in_code = part.count("`") % 2
        in_link = part.count("[") > part.count("]") or re.search(r"\]\([^)]*$", part)
        if not in_code and not in_link:
            yield part
            part = ""
    if part:
        yield part


def main() -> None:
    for file in map(Path, sys.argv[1:]):
        page = file.read_text("utf-8")
        if (made := wrapped(page)) != page:
            file.write_text(made, "utf-8")


if __name__ == "__main__":
    main()
