"""Each place of docs/explanation/security-root.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.test_contract_page import functions_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/security-root.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!Where|--)\S", line)]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_MODULE = re.compile(r"`(agent/[\w/]+\.py)`")


def test_every_row_names_a_test() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if not _TEST.search(row.split("|")[-2])] == []


def test_every_test_of_the_page_exists() -> None:
    named = _TEST.findall(PAGE)
    known = {file: functions_of(ROOT / file) for file, _ in named if (ROOT / file).is_file()}
    missing = [f"{file}::{name}" for file, name in named if name not in known.get(file, set())]
    assert missing == []


def test_every_module_of_the_page_exists() -> None:
    assert [name for name in _MODULE.findall(PAGE) if not (ROOT / name).is_file()] == []
