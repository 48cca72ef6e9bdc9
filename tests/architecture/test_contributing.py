"""CONTRIBUTING.md and docs/explanation/architecture.md name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import TREE, parse

PAGES = ("CONTRIBUTING.md", "docs/explanation/architecture.md")
ROOTS = ("muster", "orchestrator", "agent", "tests", "tools", "configs", "docs")
SENTENCES = 3
NAMED = re.compile(r"`(\w+)` in `([\w/]+\.py)`")


def quoted(page: str) -> set[str]:
    return set(re.findall(r"`([^`\s]+)`", (TREE / page).read_text("utf-8")))


def functions(file: Path) -> set[str]:
    nodes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(parse(file)) if isinstance(node, nodes)}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    paths = {name for name in quoted(page) if name.split("/")[0] in ROOTS and "/" in name}
    assert len(paths) > 10
    assert [name for name in sorted(paths) if not (TREE / name).exists()] == []


@pytest.mark.parametrize("page", PAGES[:1])
def test_every_function_stands_where_the_page_says(page: str) -> None:
    named = NAMED.findall((TREE / page).read_text("utf-8"))
    assert len(named) > 10
    assert [(name, file) for name, file in named if name not in functions(Path(file))] == []


def test_every_package_of_the_core_is_on_the_map() -> None:
    page = (TREE / "CONTRIBUTING.md").read_text("utf-8")
    packages = sorted(p.parent.name for p in (TREE / "orchestrator/core").glob("*/__init__.py"))
    assert [
        name for name in packages if not re.search(rf"^ {name}\b|  {name}\b", page, re.MULTILINE)
    ] == []


def test_every_package_of_the_agent_is_on_the_map() -> None:
    page = (TREE / "CONTRIBUTING.md").read_text("utf-8")
    line = page.partition("Inside `agent`:")[2].partition("Inside `agent/shim`")[0]
    packages = {p.parent.name for p in (TREE / "agent").glob("*/__init__.py")}
    assert packages
    assert packages - set(re.findall(r"`(\w+)`", line)) == set()


@pytest.mark.parametrize("tree", ["muster", "orchestrator", "agent"])
def test_every_package_says_what_is_in_it_who_calls_it_and_what_it_never_does(tree: str) -> None:
    files = sorted(file.relative_to(TREE) for file in (TREE / tree).rglob("__init__.py"))
    assert files
    texts = {str(file): ast.get_docstring(parse(file)) or "" for file in files}
    assert [
        file for file, text in texts.items() if len(re.findall(r"\.(?=\s|$)", text)) < SENTENCES
    ] == []
