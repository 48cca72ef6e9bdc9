"""An older copy of the journal in its place: refused, and with the way out nothing comes twice."""

import contextlib
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.journal.backup import back_up, examined
from orchestrator.journal.errors import CorruptJournalError, JournalError, LostTailError
from orchestrator.journal.journal import Journal
from orchestrator.journal.schema import FILE_NAME
from tests.orchestrator.journal.commands import command
from tests.orchestrator.journal.test_loss import all_of, contents, job, jobs


def live(state: Path, numbers: range, logs: Path | None = None) -> None:
    """Run a coordinator's journal with these jobs and a clean end."""
    with closing(Journal.open(state, logs=logs)) as journal:
        journal.begin_epoch()
        for number in numbers:
            journal.append([job(number, "ann")])


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A state folder in which the database is a copy from before its last four jobs."""
    state = tmp_path / "state"
    live(state, range(1, 4))
    shutil.copyfile(state / FILE_NAME, tmp_path / "older")
    live(state, range(4, 8))
    shutil.copyfile(tmp_path / "older", state / FILE_NAME)
    return state


def refused(state: Path, said: str, logs: Path | None = None) -> None:
    before = contents(state)
    with pytest.raises(LostTailError, match=said):
        Journal.open(state, logs=logs)
    with pytest.raises(LostTailError, match=said), examined(state, logs):
        pass
    with pytest.raises(LostTailError, match=said):
        back_up(state, state.parent / "copy", logs)
    assert contents(state) == before


def test_an_older_database_after_a_clean_end_is_refused(older: Path) -> None:
    refused(older, "record 7 was committed, and 3 is the last")


def test_a_restore_into_an_empty_folder_names_no_replaced_journal(tmp_path: Path) -> None:
    live(tmp_path / "state", range(1, 4))
    back_up(tmp_path / "state", tmp_path / "backup")
    code, said = command(tmp_path, "restore", "BACKUP")
    assert (code, "the journal that was there is" in said) == (0, True), said
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").mkdir()
    code, said = command(tmp_path, "restore", "BACKUP")
    assert (code, "replaced-1" in said) == (0, False), said
    assert f"{tmp_path / 'state'} had no journal" in said


def test_a_life_without_a_record_counts(tmp_path: Path) -> None:
    state = tmp_path / "state"
    live(state, range(1, 4))
    shutil.copyfile(state / FILE_NAME, tmp_path / "older")
    live(state, range(0))
    live(state, range(0))
    shutil.copyfile(tmp_path / "older", state / FILE_NAME)
    refused(state, "epoch 3 was committed, and 1 is the last")


@pytest.mark.parametrize("where", ["beside it", "on another disk"])
def test_output_of_a_job_that_a_database_does_not_know_is_noticed(
    where: str, older: Path, tmp_path: Path
) -> None:
    """A whole state folder was put back from a snapshot of its disk."""
    (older / "journal.closed").unlink(missing_ok=True)
    logs = tmp_path / "disk" if where == "on another disk" else None
    folder = (logs or older / "logs") / "7"
    folder.mkdir(parents=True)
    refused(older, f"{folder} has output of job 7, and 3 is the last", logs)
    folder.rename(folder.with_name("3"))
    with closing(Journal.open(older, logs=logs)) as journal:
        assert len(list(journal.replay())) == 3


def test_after_a_clean_end_the_same_database_is_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for first in (1, 4, 7):
        live(state, range(first, first + 3))
        (state / "logs" / str(first)).mkdir(parents=True)
        assert sorted(path.name for path in state.glob("journal*")) == [
            "journal.closed",
            FILE_NAME,
        ]
    assert jobs(state) == all_of("ann", 9)


def test_a_database_lost_after_a_clean_end_is_not_begun_anew(tmp_path: Path) -> None:
    live(tmp_path, range(1, 4))
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(CorruptJournalError, match=r"missing or empty, and .*journal\.closed"):
        Journal.open(tmp_path)


def test_a_backup_copied_by_hand_after_a_clean_end_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    live(state, range(1, 4))
    back_up(state, tmp_path / "copy")
    live(state, range(4, 8))
    shutil.copyfile(tmp_path / "copy", state / FILE_NAME)
    with pytest.raises(CorruptJournalError, match=r"is not the database that .*journal\.closed"):
        Journal.open(state)


@pytest.mark.parametrize("way", ["--salvage", "BACKUP"])
def test_the_words_lead_out(way: str, older: Path, tmp_path: Path) -> None:
    (older / "logs" / "7").mkdir(parents=True)
    code, said = command(tmp_path, "backup", str(tmp_path / "copy"))
    assert code == 1
    assert "put the newer one back" in said
    assert "--salvage`" in said
    live(tmp_path / "other", range(1, 4))
    back_up(tmp_path / "other", tmp_path / "backup")
    code, said = command(tmp_path, "restore", way)
    assert code == 0, said
    assert "restored 3 jobs, the last is 3;" in said
    assert "up to number 7 at most, are unknown" in said
    with closing(Journal.open(older)) as journal:
        assert journal.first_job > 7
        assert journal.begin_epoch() > 2, "agents take it for the newest"


def test_a_backup_of_everything_lacks_no_job(tmp_path: Path) -> None:
    live(tmp_path / "state", range(1, 4))
    back_up(tmp_path / "state", tmp_path / "backup")
    code, said = command(tmp_path, "restore", "BACKUP")
    assert code == 0, said
    assert "unknown" not in said


def test_an_older_database_with_the_newer_log_never_lacks_a_job_in_silence(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    copies = []
    journal = Journal.open(work)
    journal.begin_epoch()
    for number in range(1, 60):
        journal.append([job(number, "ann")])
        if number % 4 == 0:
            copies.append(shutil.copyfile(work / FILE_NAME, tmp_path / f"copy-{number}"))
        if number % 10 == 0:
            journal._checkpoint()
    crashed = tmp_path / "crashed"
    shutil.copytree(work, crashed)
    journal.close()
    outcomes = []
    for copy in copies:
        state = tmp_path / f"with-{copy.name}"
        shutil.copytree(crashed, state)
        shutil.copyfile(copy, state / FILE_NAME)
        with contextlib.suppress(JournalError):
            outcomes.append(len(jobs(state)))
    assert set(outcomes) == {59}, "those of after the last checkpoint, whose rest the log has"
