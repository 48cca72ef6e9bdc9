"""A log is opened without trusting its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.logs.source import LogSource, RefusedFileError


def test_a_file_is_read_at_an_offset_and_seen_to_grow(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs/out"
    path.write_bytes(b"0123456789")
    source = LogSource.open(tmp_path, "logs/out")
    assert source is not None
    assert source.read(3, 4) == b"3456"
    assert source.read(10, 4) == b""
    with path.open("ab") as file:
        file.write(b"ab")
    assert source.read(10, 4) == b"ab"
    assert source.size() == 12
    source.close()
    source.close()


@pytest.mark.parametrize("path", ["logs/none", "none/at/all"])
def test_a_file_that_is_not_there_yet_is_none(tmp_path: Path, path: str) -> None:
    assert LogSource.open(tmp_path, path) is None


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../out", "logs/../../out", "logs/", "./a"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedFileError):
        LogSource.open(tmp_path, path)


def test_what_is_no_plain_file_of_one_name_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "task", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "out").write_text("of somebody else")
    (inside / "link").symlink_to(outside / "out")
    (inside / "folder-link").symlink_to(outside)
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    os.link(outside / "out", inside / "second-name")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("link", "folder-link/out", "folder", "pipe", "second-name"):
        with pytest.raises(RefusedFileError):
            LogSource.open(inside, path)
    assert len(os.listdir("/proc/self/fd")) == before
