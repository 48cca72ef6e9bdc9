"""A restore that was killed at any instant: the next one gives what the first would have given."""

import os
import shutil
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from muster.daemon.errors import FileError
from orchestrator.journal.backup import back_up, examined, restore
from orchestrator.journal.errors import HalfRestoredError, JournalError
from orchestrator.journal.schema import FILE_NAME
from tests.orchestrator.journal.commands import command
from tests.orchestrator.journal.killed import FAR, killed_at
from tests.orchestrator.journal.test_loss import COMMITS, LOG, all_of, contents, jobs, killed

WORDS: Final = {"salvage": ["--salvage"], "backup": ["BACKUP"], "without a mark": ["BACKUP"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder whose log is damaged in the middle, and a backup of all its jobs but one."""
    folder = tmp_path_factory.mktemp("made")
    killed(folder, "ann")
    (folder / "ann").rename(folder / "state")
    back_up(folder / "state", folder / "backup")
    log = folder / "state" / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    return folder


def copied(made: Path, folder: Path, how: str) -> Path:
    for name in ("state", "backup"):
        copy = shutil.copytree if name == "state" else shutil.copyfile
        folder.mkdir(exist_ok=True)
        copy(made / name, folder / name)
    if how == "without a mark":
        (folder / "state" / "journal.open").unlink()
    return folder


@pytest.mark.parametrize("how", WORDS)
def test_a_killed_restore_is_run_again_with_the_same_jobs(
    how: str, made: Path, tmp_path: Path
) -> None:
    words = ["restore", *WORDS[how]]
    whole = copied(made, tmp_path / "whole", how)
    assert command(whole, *words)[0] == 0
    expected = jobs(whole / "state")
    assert 1 < len(expected) < COMMITS
    half = 0
    for moment in range(1, FAR):
        folder = copied(made, tmp_path / f"at-{moment}", how)
        state = folder / "state"
        was_killed = killed_at(moment, lambda folder=folder: command(folder, *words))  # type: ignore[misc]
        try:
            left = jobs(state)
        except JournalError as error:
            half += isinstance(error, HalfRestoredError)
            before = contents(state)
            code, said = command(folder, "backup", "copy")
            assert code == 1, said
            assert "muster restore" in said, said
            assert contents(state) == before
            code, said = command(folder, *words)
            assert code == 0, said
            left = jobs(state)
        assert left == expected
        assert sorted(state.glob(".journal*")) == []
        assert sorted(state.glob(f"{FILE_NAME}.restoring*")) == []
        shutil.rmtree(folder)
        if not was_killed:
            break
    assert half >= 3, "instants between the first rename and the last"


@pytest.mark.parametrize("then", ["no such file", "--salvage"])
def test_a_killed_restore_is_undone_by_one_that_puts_nothing_in_place(
    then: str, tmp_path: Path
) -> None:
    """An operator may have another look: the journal that was there is whole."""
    killed(tmp_path, "ann")
    back_up(tmp_path / "ann", tmp_path / "backup")
    before = contents(tmp_path / "ann")
    state = tmp_path / "state"
    for moment in range(1, FAR):
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(tmp_path / "ann", state)
        assert killed_at(moment, lambda: command(tmp_path, "restore", "BACKUP"))
        if not (state / FILE_NAME).exists():
            break
    with pytest.raises(HalfRestoredError), examined(state):
        pass
    with pytest.raises(HalfRestoredError):
        back_up(state, tmp_path / "copy")
    assert command(tmp_path, "restore", then)[0] == 1
    assert contents(state) == before
    assert jobs(state) == all_of("ann")


def test_a_restore_that_fails_between_its_renames_is_undone(tmp_path: Path) -> None:
    killed(tmp_path, "ann")
    back_up(tmp_path / "ann", tmp_path / "backup")
    before = contents(tmp_path / "ann")
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == FILE_NAME:
            raise OSError(5, "Input/output error")
        rename(source, target)

    with (
        mock.patch("os.rename", fail),
        pytest.raises(FileError, match="cannot be restored"),
    ):
        restore(tmp_path / "ann", tmp_path / "backup", COMMITS)
    assert contents(tmp_path / "ann") == before
    assert jobs(tmp_path / "ann") == all_of("ann")


def test_a_file_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    killed(tmp_path, "ann")
    folder = tmp_path / "ann"
    back_up(folder, tmp_path / "backup")
    (folder / FILE_NAME).rename(folder / f"{FILE_NAME}.replaced-1")
    (folder / f"{FILE_NAME}.restoring-1").write_bytes(b"made by the restore")
    (folder / FILE_NAME).write_bytes(b"by a tool")
    with pytest.raises(FileError, match=r"move .* away and run it again"):
        restore(folder, tmp_path / "backup", COMMITS)
    assert (folder / FILE_NAME).read_bytes() == b"by a tool"
    (folder / FILE_NAME).unlink()
    restore(folder, tmp_path / "backup", COMMITS)
    assert jobs(folder) == all_of("ann")
