"""The hosts file is written in place if names cannot be exchanged."""

from __future__ import annotations

import subprocess
from io import FileIO
from pathlib import Path

import pytest

from agent.hostsfile.editor import HostsFile, HostsFileError
from tests.agent.hostsfile import writers
from tests.agent.hostsfile.changes import BASE, THEIRS, beside, put, slipping, take


@pytest.mark.usefixtures("impatient", "unexchangeable")
def test_a_slow_writer_of_a_file_in_place_loses_nothing(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He opened it between the look for him and our writing."""
    opened: list[FileIO] = []
    slipping(monkeypatch, lambda: opened.append(path.open("wb", buffering=0)))
    for _ in range(2):
        with pytest.raises(HostsFileError, match="open for writing"):
            file.update(put)
    opened[0].write(THEIRS)
    opened[0].close()
    assert path.read_bytes() == THEIRS
    file.update(put)
    assert path.read_bytes() == put(THEIRS)


@pytest.mark.usefixtures("impatient", "unexchangeable")
def test_a_reader_of_a_file_written_in_place_is_not_awaited(path: Path, file: HostsFile) -> None:
    with path.open("rb"):
        file.update(put)
    assert path.read_bytes() == put(BASE)


@pytest.mark.root
def test_a_file_that_is_mounted_on_is_written_in_place(mounted: Path, tmp_path: Path) -> None:
    file = HostsFile(mounted, tmp_path / "before")
    inode = mounted.stat().st_ino
    file.update(put)
    assert mounted.read_bytes() == put(BASE)
    assert mounted.stat().st_ino == inode
    file.update(take)
    assert mounted.read_bytes() == BASE


@pytest.mark.root
@pytest.mark.parametrize("way", ["append", "flock", "lockf"])
def test_edits_beside_ours_are_all_there_in_place(mounted: Path, tmp_path: Path, way: str) -> None:
    mounted.write_bytes(BASE + b"\n")
    beside(HostsFile(mounted, tmp_path / "before"), mounted, way, 100)
    assert mounted.read_bytes() == BASE + b"\n" + b"".join(writers.line(n) for n in range(100))


@pytest.mark.root
def test_a_file_that_is_mounted_read_only_is_a_refusal_in_words(
    mounted: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", mounted], check=True)
    with pytest.raises(HostsFileError, match="Read-only file system"):
        HostsFile(mounted, tmp_path / "before").update(put)


@pytest.mark.usefixtures("unexchangeable")
def test_a_block_in_the_middle_goes_in_place(path: Path, file: HostsFile) -> None:
    path.write_bytes(BASE + b"\n")
    file.update(put)
    writers.append(path, 1)
    file.update(take)
    assert path.read_bytes() == BASE + b"\n" + writers.line(1)
