"""Files that a job's user can replace: what is opened is what was checked."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from agent.shim.system import job_files
from agent.shim.system.job_files import RefusedFileError, open_checked
from tests.descriptors import open_under

OWN = os.geteuid()
NOBODY = pwd.getpwnam("nobody").pw_uid


def content(path: Path, owner: int = OWN) -> bytes:
    fd = open_checked(str(path), owner)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_plain_file_of_the_user_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    assert content(tmp_path / "file") == b"mine"
    with pytest.raises(FileNotFoundError):
        content(tmp_path / "none")


def test_anything_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "file", tmp_path / "second")
    for name in ("folder", "link", "pipe", "second"):
        with pytest.raises(RefusedFileError, match=name):
            content(tmp_path / name)
    (tmp_path / "second").unlink()
    with pytest.raises(RefusedFileError, match=f"belongs to uid {OWN}"):
        content(tmp_path / "file", OWN + 1)
    assert open_under(tmp_path) == []


@pytest.mark.root
@pytest.mark.skipif(OWN != 0, reason="only root can make a device")
def test_a_device_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container allows no devices")
    opened: list[int] = []
    real = os.open

    def noted(path: str, flags: int, *more: int, **given: int) -> int:
        if not flags & os.O_PATH:
            opened.append(flags)
        return real(path, flags, *more, **given)

    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(RefusedFileError, match="not a regular file"):
        content(tmp_path / "device")
    assert opened == []


def test_a_name_that_is_replaced_after_the_check_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "secret").write_bytes(b"root's")
    real = job_files._problem

    def check(status: os.stat_result, owner: int | None, *, fifo: bool) -> str:
        found = real(status, owner, fifo=fifo)
        (tmp_path / "file").unlink()
        (tmp_path / "file").symlink_to("secret")
        return found

    monkeypatch.setattr(job_files, "_problem", check)
    assert content(tmp_path / "file") == b"mine"
