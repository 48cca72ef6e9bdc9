"""A log is opened without trusting its name."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from agent.logs import log_file
from agent.logs.log_file import EMPTIED, OFFSET_MAX, LogSource
from agent.shim.system.job_files import RefusedFileError
from tests.descriptors import open_under


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


def test_a_log_ends_at_an_offset_that_no_peer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job makes its file long and empties it, again and again."""
    path = tmp_path / "out"
    path.write_bytes(b"begin")
    source = LogSource.open(tmp_path, "out")
    assert source is not None
    os.truncate(path, 100_000)
    monkeypatch.setattr(log_file, "OFFSET_MAX", 60_000)
    assert source.take(8192, 100) == 60_000 - 8192, "the hole, as far as it is reported"
    assert source.take(60_000, 100) == b""
    os.truncate(path, 0)
    assert source.take(59_999, 100) == EMPTIED
    assert source.take(60_000 + len(EMPTIED), 100) == b""
    assert source.read(OFFSET_MAX, 100) == b""
    source.close()


@pytest.mark.parametrize("path", ["logs/none", "none/at/all"])
def test_a_file_that_is_not_there_yet_is_none(tmp_path: Path, path: str) -> None:
    assert LogSource.open(tmp_path, path) is None


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../out", "logs/../../out", "logs/", "./a"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedFileError):
        LogSource.open(tmp_path, path)


def test_only_plain_files_with_one_link_are_accepted(tmp_path: Path) -> None:
    inside, outside = tmp_path / "task", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "out").write_text("of somebody else")
    (inside / "link").symlink_to(outside / "out")
    (inside / "folder-link").symlink_to(outside)
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    os.link(outside / "out", inside / "second-name")
    for path in ("link", "folder-link/out", "folder", "pipe", "second-name"):
        with pytest.raises(RefusedFileError):
            LogSource.open(inside, path)
    assert open_under(tmp_path) == []


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
    # A folder of another user, which the job has moved there.
    (tmp_path / "nccl/theirs").mkdir()
    (tmp_path / "nccl/theirs/secret").write_text("of another user")
    for path in ("nccl/theirs/secret", "nccl/theirs"):
        os.chown(tmp_path / path, nobody - 1, nobody - 1)
    for path in ("logs/mine", "logs/secret", "nccl/mine"):
        source = LogSource.open(tmp_path, path)
        assert source is not None
        source.close()
    for path in ("nccl/secret", "nccl/below/secret"):
        with pytest.raises(RefusedFileError, match="belongs to uid 0"):
            LogSource.open(tmp_path, path)
    with pytest.raises(RefusedFileError, match=f"belongs to uid {nobody - 1} and not to {nobody}"):
        LogSource.open(tmp_path, "nccl/theirs/secret")
    assert open_under(tmp_path) == []


def read_all(source: LogSource, limit: int) -> list[bytes | int]:
    found: list[bytes | int] = []
    at = 0
    while piece := source.take(at, limit):
        found.append(piece)
        at += piece if isinstance(piece, int) else len(piece)
    return found


@pytest.mark.parametrize("limit", [4096, 128 * 1024, 1 << 20])
def test_holes_are_distinguished_from_bytes_wherever_they_are(tmp_path: Path, limit: int) -> None:
    """Text, a hole, text that begins in the middle of a block, zeros that were written, a hole."""
    path = tmp_path / "out"
    size = 1 << 30
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(size + 100)
        file.write(b"middle" + bytes(1 << 20))
        file.truncate(2 * size)
    source = LogSource.open(tmp_path, "out")
    assert source is not None
    pieces = read_all(source, limit)
    sent = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    holes = [piece for piece in pieces if isinstance(piece, int)]
    source.close()
    assert len(sent) + sum(holes) == 2 * size
    assert len(holes) == 2
    assert sent.replace(b"\0", b"") == b"beginmiddle"
    assert 1 << 20 < len(sent) < (1 << 20) + 4 * 65536, "zeros that were written are bytes"


def test_many_small_holes_are_not_blown_up(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        for at in range(64):
            file.seek(at * 100_000)
            file.write(b"x")
    taken = os.stat(path).st_blocks * 512
    source = LogSource.open(tmp_path, "out")
    assert source is not None
    pieces = read_all(source, 128 * 1024)
    source.close()
    assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) <= taken
    assert sum(p if isinstance(p, int) else len(p) for p in pieces) == path.stat().st_size


def test_a_log_that_was_emptied_has_no_hole_before_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"0123456789")
    source = LogSource.open(tmp_path, "out")
    assert source is not None
    assert source.take(0, 100) == b"0123456789"
    os.truncate(path, 0)
    mark = source.take(10, 200)
    assert isinstance(mark, bytes)
    assert b"emptied" in mark
    os.truncate(path, 1 << 20)
    assert source.take(10 + len(mark), 100) == 1 << 20
    source.close()
