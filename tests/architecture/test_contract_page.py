"""docs/reference/contract.md names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from muster.cli.commands import VERBS
from orchestrator.api.routes import ROUTES

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions_of(file: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, functions)
    }


def test_every_test_of_the_page_exists() -> None:
    named = _NAMED.findall((ROOT / "docs/reference/contract.md").read_text())
    assert len(named) > 20
    files = {file for file, _ in named if (ROOT / file).is_file()}
    known = {file: functions_of(ROOT / file) for file in files}
    missing = [f"{file}::{name}" for file, name in named if name not in known.get(file, set())]
    assert missing == []


def test_every_promise_of_the_page_has_a_test() -> None:
    rows = re.findall(
        r"^\| (?!promise|--)(.*) \| (.*) \|$",
        (ROOT / "docs/reference/contract.md").read_text(),
        re.MULTILINE,
    )
    assert rows
    assert [promise for promise, shown in rows if not _NAMED.search(shown)] == []


def test_every_route_and_every_verb_is_on_the_page() -> None:
    """A route by its method and whole path, a verb as a word of its promise."""
    page = (ROOT / "docs/reference/contract.md").read_text()
    promises = " ".join(re.findall(r"^\| (?!promise|--)(.*) \| .* \|$", page, re.MULTILINE))
    routes = [f"{route.method} {route.path}" for route in ROUTES if route.method != "HEAD"]
    named = set(re.findall(r"[A-Z]+ /[\w./:{}]*[\w}]", promises))
    assert [route for route in routes if route not in named] == []
    words = set(re.findall(r"[a-z]+", promises))
    assert [verb for verb in VERBS if verb not in words] == []
