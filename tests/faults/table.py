"""The faults: what each is, what is promised, and the tests that show it; see faults.toml."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("faults.toml")


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row. `why` says what no test shows, and why."""

    number: int
    fault: str
    injected: str
    promised: str
    bound: str = ""
    shown_by: tuple[str, ...] = ()
    why: str = ""


def faults() -> list[Fault]:
    """All of them, by number."""
    found = msgspec.convert(tomllib.loads(FILE.read_text("utf-8"))["fault"], list[Fault])
    return sorted(found, key=lambda row: row.number)


def by_test() -> dict[str, list[int]]:
    """The faults that each test is named for in the table."""
    found: dict[str, list[int]] = {}
    for row in faults():
        for test in row.shown_by:
            found.setdefault(test, []).append(row.number)
    return found


def names_in(file: Path) -> dict[str, list[int]]:
    """The tests of a file, and the faults that each is marked with."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = (m for d in node.decorator_list for m in ast.walk(d) if isinstance(m, ast.Call))
            found[node.name] = [
                argument.value
                for mark in marks
                if ast.unparse(mark.func).endswith("mark.fault")
                for argument in mark.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
            ]
    return found


def named() -> dict[int, set[str]]:
    """The tests of each fault: those that the table names, and those that are marked with it."""
    found = {row.number: set(row.shown_by) for row in faults()}
    for file in sorted(ROOT.glob("tests/**/test_*.py")):
        for name, numbers in names_in(file).items():
            for number in numbers:
                test = f"{file.relative_to(ROOT).as_posix()}::{name}"
                found.setdefault(number, set()).add(test)
    return found
