"""A log is opened without trusting its name."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from agent.logs.source import LogSource
from agent.shim.job_files import RefusedFileError


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


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
def test_in_a_folder_of_the_job_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """The job's user moved it there, who may move what is in a folder of theirs."""
    nobody = pwd.getpwnam("nobody").pw_uid
    for name in ("logs", "nccl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("of the job")
        (tmp_path / name / "secret").write_text("of root")
        (tmp_path / name / "secret").chmod(0o600)
        os.chown(tmp_path / name / "mine", nobody, nobody)
    os.chown(tmp_path / "nccl", nobody, nobody)
    (tmp_path / "nccl/below").mkdir()
    (tmp_path / "nccl/below/secret").write_text("of root")
    for path in ("logs/mine", "logs/secret", "nccl/mine"):
        source = LogSource.open(tmp_path, path)
        assert source is not None
        source.close()
    before = len(os.listdir("/proc/self/fd"))
    for path in ("nccl/secret", "nccl/below/secret"):
        with pytest.raises(RefusedFileError, match="belongs to uid 0"):
            LogSource.open(tmp_path, path)
    assert len(os.listdir("/proc/self/fd")) == before
