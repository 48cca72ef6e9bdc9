"""What a task leaves in its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.shim.exit_record import Logs


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("", ""),
        ("one\ntwo\n", "one\ntwo"),
        ("a line that is cut\nthe last line\n", "the last line"),
        ("x" * 500 + "\n", "x" * 19),
    ],
)
def test_the_last_lines_of_a_log(tmp_path: Path, text: str, tail: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "setup.log").write_text(text)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert Logs(folder, None).tail("setup.log", 20) == tail
    finally:
        os.close(folder)
