"""A state folder on a network file system is known by its mount."""

import os
from pathlib import Path

import pytest

from muster.daemon.errors import FileError
from muster.daemon.network_fs import network_kind
from orchestrator.journal import journal
from orchestrator.journal.journal import Journal


def mounts(tmp_path: Path, kind: str) -> Path:
    """A table of mounts in which the file system of `tmp_path` is of that kind."""
    device = os.stat(tmp_path).st_dev
    text = (
        "21 1 0:99 / /proc rw - proc proc rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / /home rw shared:1 - {kind} nas:/home rw\n"
    )
    (tmp_path / "mountinfo").write_text(text)
    return tmp_path / "mountinfo"


@pytest.mark.parametrize(
    ("kind", "known"), [("nfs4", "nfs4"), ("lustre", "lustre"), ("ext4", ""), ("fuse.x", "")]
)
def test_its_kind(tmp_path: Path, kind: str, known: str) -> None:
    assert network_kind(tmp_path, mounts(tmp_path, kind)) == known


def test_an_unknown_file_system_is_not_a_network_one(tmp_path: Path) -> None:
    assert network_kind(tmp_path, tmp_path / "nothing") == ""
    assert network_kind(tmp_path / "nothing") == ""


def test_a_journal_is_not_opened_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "network_kind", lambda _: "nfs4")
    for _ in range(2):  # and the lock is let go
        with pytest.raises(FileError, match=r"network file system \(nfs4\).*state_dir"):
            Journal.open(tmp_path)
