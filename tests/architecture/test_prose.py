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


def comments(file: Path) -> Iterator[str]:
    source = io.StringIO((TREE / file).read_text("utf-8"))
    for token in tokenize.generate_tokens(source.readline):
        if token.type == tokenize.COMMENT:
            yield token.string


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
