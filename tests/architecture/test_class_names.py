"""Public classes of the product: each name belongs to one class."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.architecture.sources import parse, source_files

AT_BOTH_ENDS = {
    # Agent and coordinator each have a pure core of the same construction.
    "Decision",
    "SetTimer",
    "State",
    "Timer",
    "TimerFired",
    # The agent's input becomes the coordinator's fact.
    "TaskObserved",
    # The coordinator answers with it, the client raises it.
    "ApiError",
    # The role of a user, and that of a node in a gang.
    "Role",
}


def defined() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in source_files():
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file))
    return found


def test_no_two_public_classes_share_a_name() -> None:
    shared = {
        name: files
        for name, files in defined().items()
        if len(files) > 1 and name not in AT_BOTH_ENDS
    }
    assert shared == {}


def test_a_name_is_at_both_ends_only_if_two_classes_bear_it() -> None:
    found = defined()
    assert {name: len(found[name]) for name in AT_BOTH_ENDS} == dict.fromkeys(AT_BOTH_ENDS, 2)
