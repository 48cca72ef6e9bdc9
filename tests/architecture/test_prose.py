"""The first rules of the style guide in CONTRIBUTING.md, for docstrings, comments and pages."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.architecture.sources import TREE, parse
from tools.docs.wrap import wrapped

FOLDERS = ("muster", "orchestrator", "agent", "tests", "tools", "benchmarks", "examples")
# This file names the words that it forbids.
OWN = Path(__file__).resolve().relative_to(TREE)

PRONOUN = re.compile(
    r"(What|Whether|Who|Whose|Whom|Where|Which|One|Those|These|That|Of|How|When|Whoever|Whatever|"
    r"Why|As)\b"
)
# A comment may count ("One GPU and one HCA") or point ("These errors mean ...").
PRONOUN_OF_COMMENT = re.compile(
    r"#+\s*(?:What|Whether|Who|Whose|Whom|Where|Which|Those|That|Of|How|Whoever|Whatever|Why|As|"
    r"One (?:that|who|which))\b"
)
BANNED = re.compile(
    r"\b(told|tells?|hears?|heard|hearing|whoever|be (?:it|they)|but for|for want of|in one breath|"
    r"as good as|what comes of)\b",
    re.IGNORECASE,
)
CODE = re.compile(r"`[^`]*`")


def python_files() -> list[Path]:
    """All Python files of the tree, by path relative to it."""
    return sorted(
        file.relative_to(TREE) for folder in FOLDERS for file in (TREE / folder).rglob("*.py")
    )


class Texts(NamedTuple):
    """The docstrings of a file, each with whether it is the module's, and those of attributes."""

    of_definitions: list[tuple[bool, str]]
    of_attributes: list[str]


@functools.cache
def texts(file: Path) -> Texts:
    found = Texts([], [])
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(parse(file)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            found.of_definitions.append((isinstance(node, ast.Module), text))
        if isinstance(node, ast.Module | ast.ClassDef):
            found.of_attributes.extend(_below_attributes(node.body))
    return found


def _below_attributes(body: list[ast.stmt]) -> Iterator[str]:
    for assigned, text in pairwise(body):
        if (
            isinstance(assigned, ast.Assign | ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield text.value.value


def tokens_of_comments(source: str) -> Iterator[tokenize.TokenInfo]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token


def comments(file: Path) -> Iterator[str]:
    for token in tokens_of_comments((TREE / file).read_text("utf-8")):
        yield token.string


def beginnings_of_comments(source: str) -> Iterator[tuple[int, str]]:
    """The number and text of the first line of each comment."""
    above: tuple[int, int] | None = None
    for token in tokens_of_comments(source):
        line, column = token.start
        if above != (line - 1, column):
            yield line, token.string
        alone = token.line.lstrip().startswith("#") and not token.string.startswith("#!")
        above = token.start if alone else None


def beginnings(*, of_modules: bool) -> list[str]:
    return [
        f"{file}: {text.splitlines()[0]}"
        for file in python_files()
        for is_module, text in texts(file).of_definitions
        if is_module is of_modules and PRONOUN.match(text)
    ]


def test_the_docstring_of_a_module_begins_with_its_subject() -> None:
    found = beginnings(of_modules=True)
    assert not found, "\n".join(found)


def test_the_docstring_of_a_definition_begins_with_a_verb_or_a_noun() -> None:
    found = beginnings(of_modules=False)
    assert not found, "\n".join(found)


def test_the_docstring_of_an_attribute_begins_with_a_noun() -> None:
    found = [
        f"{file}: {text.splitlines()[0]}"
        for file in python_files()
        for text in texts(file).of_attributes
        if PRONOUN.match(text)
    ]
    assert not found, "\n".join(found)


def test_a_comment_begins_with_its_subject_or_reason() -> None:
    found = [
        f"{file}:{line}: {text}"
        for file in python_files()
        for line, text in beginnings_of_comments((TREE / file).read_text("utf-8"))
        if PRONOUN_OF_COMMENT.match(text)
    ]
    assert not found, "\n".join(found)


def test_only_the_first_line_of_a_comment_is_checked() -> None:
    source = (
        "#!/usr/bin/env python\n"
        "# Who joins\n# What comes on a second line is not judged.\n"
        "a = 1  # Whose it is\n"
        "b = 2  # The second.\n"
        "if a:\n"
        "    # As in another column\n"
        "    pass\n"
        "# Because the reason comes first.\n# `Why` is quoted code.\n"
        "c = '''\n# Where a string has one\n'''\n"
    )
    found = [
        line for line, text in beginnings_of_comments(source) if PRONOUN_OF_COMMENT.match(text)
    ]
    assert found == [2, 4, 7]
    assert PRONOUN_OF_COMMENT.match("# One that waits belongs to its node.")
    assert not PRONOUN_OF_COMMENT.match("# One transaction, so that a crash leaves no half.")
    assert not PRONOUN_OF_COMMENT.match("# Asks again.")


def test_words_of_the_old_dialect_do_not_come_back() -> None:
    found = [
        f"{file}: {text.strip()}"
        for file in python_files()
        if file != OWN
        for text in (
            *(each for _, each in texts(file).of_definitions),
            *texts(file).of_attributes,
            *comments(file),
        )
        if BANNED.search(CODE.sub("", text))
    ]
    assert not found, "\n".join(found)


def test_a_dialect_is_recognised() -> None:
    assert PRONOUN.match("Why a node cannot be used.")
    assert PRONOUN.match("What the coordinator wants of a task now.")
    assert not PRONOUN.match("True if the node has a free GPU.")
    assert not PRONOUN.match("Return the free GPUs of a node.")
    assert BANNED.search("it is told in the log")
    assert BANNED.search("The node hears of it later.")
    assert not BANNED.search(CODE.sub("", "Pass each status to `heard`."))


def test_pages_are_wrapped_at_100_columns() -> None:
    pages = [TREE / "README.md", TREE / "CONTRIBUTING.md", TREE / "CHANGELOG.md"]
    # The fault matrix is made of lists of test names, which no line can hold.
    pages += [p for p in (TREE / "docs").rglob("*.md") if p.name != "fault-matrix.md"]
    assert len(pages) > 30
    found = [
        str(page.relative_to(TREE))
        for page in pages
        if (text := page.read_text("utf-8")) != wrapped(text)
    ]
    assert not found, f"run: python -m tools.docs.wrap {' '.join(sorted(found))}"
