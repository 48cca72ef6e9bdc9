"""Files that a task leaves in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent.shim.exit_record import EXIT, Logs, reserve_exit, write_exit
from tests.small_disk import fill, small_disk


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


@pytest.mark.root
def test_the_record_of_many_failed_ranks_fits_on_a_full_disk(tmp_path: Path) -> None:
    """The ranks that failed first keep their texts."""
    ranks = [
        {
            "rank": rank,
            "exit": {"code": 1, "signal": None, "at_s": 1000.0 - rank},
            "error": "e" * 4096,
            "stderr_tail": "s" * 4096,
            "kernel": "k" * 12_800,
        }
        for rank in range(500)
    ]
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        folder = os.open(disk, os.O_RDONLY)
        try:
            reserve_exit(folder)
            fill(disk)
            write_exit(folder, {"task": "1.1.0", "ranks": ranks})
        finally:
            os.close(folder)
        written = json.loads((disk / EXIT).read_text())["ranks"]
    assert [rank["rank"] for rank in written if rank["error"]] == [496, 497, 498, 499]
    assert len(written) == 500
