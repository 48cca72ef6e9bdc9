"""Trees to probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.probe.fabric.trees import Node, unpack


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty tree."""
    root = tmp_path / "root"
    root.mkdir()
    return Node(root)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks the tree of a real node, once; nobody may change it."""
    known: dict[str, Path] = {}

    def unpacked(name: str) -> Path:
        if name not in known:
            known[name] = unpack(name, tmp_path_factory.mktemp(name))
        return known[name]

    return unpacked
