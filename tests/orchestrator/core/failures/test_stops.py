"""Stop of a gang: one module requests it."""

from __future__ import annotations

import ast
from pathlib import Path

import orchestrator


def test_a_single_module_requests_stops() -> None:
    found = [
        path.name
        for path in Path(orchestrator.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _called(node.func) in ("StopRequested", "TaskLeft")
    ]
    assert found == ["stops.py", "stops.py"]


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case _:
            return ""
