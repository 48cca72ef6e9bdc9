"""A disk without room: what ends jobs is still written down, and nothing acknowledged is lost."""

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.ids import JobId
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import jobs as f
from orchestrator.journal.disk_reserve import FILE_NAME, is_full
from orchestrator.journal.errors import JournalError, JournalWriteError
from orchestrator.journal.journal import Journal
from orchestrator.journal.reader_pool import read_only
from tests.small_disk import fill, small_disk

RESERVE = 1 << 20
SPEC = JobSpec(name="demo", run=Shell("true"))


def submitted(number: int, size: int = 0) -> list[tuple[f.Fact, float]]:
    return [(f.JobSubmitted(JobId(number), SPEC, "ann", "", "x" * size), 1.0)]


class Faulty:
    """A database of which the next commits (or what `at` says) fail as a disk makes them fail."""

    def __init__(self, database: sqlite3.Connection, *codes: int, at: str = "COMMIT") -> None:
        self._database = database
        self._at = at
        self.codes = list(codes)

    def execute(self, text: str, *given: Any) -> sqlite3.Cursor:
        if text == self._at and self.codes:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = self.codes.pop(0)
            raise error
        return self._database.execute(text, *given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def with_faults(folder: Path, *codes: int) -> Journal:
    journal = Journal.open(folder, RESERVE)
    journal.begin_epoch()
    journal._database = Faulty(journal._database, *codes)  # type: ignore[assignment]
    return journal


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
def test_a_write_without_room_has_the_reserve(tmp_path: Path, code: int) -> None:
    journal = with_faults(tmp_path, code)
    assert (tmp_path / FILE_NAME).stat().st_size == RESERVE
    before = (tmp_path / "journal.sqlite-wal").stat().st_blocks
    assert list(journal.append(submitted(1))) == [1]
    assert not (tmp_path / FILE_NAME).exists()
    assert (tmp_path / "journal.sqlite-wal").stat().st_blocks * 512 >= RESERVE // 2 + before
    assert [r.seq for r in journal.replay()] == [1]
    # There is room on this disk: so the reserve is kept again as soon as somebody looks.
    assert journal.problem() == ""
    assert (tmp_path / FILE_NAME).stat().st_size == RESERVE
    journal.close()


@pytest.mark.parametrize(
    "codes",
    [
        (sqlite3.SQLITE_FULL, sqlite3.SQLITE_FULL),
        (sqlite3.SQLITE_IOERR_FSYNC,),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC,),
        (sqlite3.SQLITE_IOERR,),
    ],
)
def test_an_fsync_that_failed_is_not_tried_again(tmp_path: Path, codes: tuple[int, ...]) -> None:
    """Nor a write for which not even the reserve was enough: the process ends."""
    journal = with_faults(tmp_path, *codes)
    with pytest.raises(JournalWriteError, match="nothing was acted on"):
        journal.append(submitted(1))
    assert list(journal.replay()) == []
    journal.close()


@pytest.mark.parametrize(
    ("code", "goes_on"), [(sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_IOERR_FSYNC, False)]
)
def test_an_error_during_a_checkpoint_is_noticed(tmp_path: Path, code: int, goes_on: bool) -> None:
    journal = with_faults(tmp_path)
    journal._database = Faulty(journal._database, code, at="PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[assignment]
    journal._log_pages = 10_000
    if goes_on:
        # The database cannot grow: the log keeps what it has.
        journal.append(submitted(1))
    else:
        with pytest.raises(JournalWriteError):
            journal.append(submitted(1))
    assert [r.seq for r in journal.replay()] == [1]
    journal.close()


def test_the_log_is_short_again_after_a_long_reader_and_keeps_what_was_in_the_reserve(
    tmp_path: Path,
) -> None:
    reserve = 16 * RESERVE
    journal = Journal.open(tmp_path, reserve)
    log = tmp_path / "journal.sqlite-wal"
    written = 0

    def write(facts: int) -> int:
        nonlocal written
        for _ in range(facts):
            written += 1
            journal.append(submitted(written, 100_000))
        return log.stat().st_size

    with contextlib.closing(read_only(journal.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM fact").fetchone()
        long = write(600)
    short = write(100)
    assert short < long / 2
    # It is no shorter than it is in a usual life with the reserve behind it.
    assert short > reserve + 1000 * 4096
    assert [r.seq for r in journal.replay()] == list(range(1, written + 1))
    journal.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 12 << 20) as folder:
        yield folder


@pytest.mark.root
def test_a_full_disk_has_room_for_what_ends_jobs_and_nothing_else_may_take_it(disk: Path) -> None:
    state = disk / "state"
    journal = Journal.open(state, 3 * RESERVE)
    journal.begin_epoch()
    assert journal.problem() == ""
    journal.append(submitted(1))
    filler = fill(disk)
    assert "is full: 0 MiB are free" in journal.problem()
    written = 1
    while (state / FILE_NAME).exists():
        journal.append(submitted(1, 10_000))
        written += 1
    # Another program that writes there gets none of the reserve.
    fill(disk, "other")
    for _ in range(60):
        journal.append(submitted(1, 10_000))
        written += 1
    assert "is full" in journal.problem()
    filler.unlink()
    (disk / "other").unlink()
    assert journal.problem() == ""
    assert (state / FILE_NAME).stat().st_size == 3 * RESERVE
    journal.close()

    again = Journal.open(state, 3 * RESERVE)
    assert [r.seq for r in again.replay()] == list(range(1, written + 1))
    again.close()


@pytest.mark.root
def test_a_reserve_that_is_used_up_ends_the_process_and_loses_nothing(disk: Path) -> None:
    state = disk / "state"
    journal = Journal.open(state, RESERVE)
    journal.begin_epoch()
    filler = fill(disk)
    written = 0
    said = ""
    while not said:
        try:
            journal.append(submitted(1, 50_000))
            written += 1
        except JournalWriteError as error:
            said = str(error)
    assert "make room on the disk of" in said
    fill(disk, "other")
    journal.close()

    # It starts where there is hardly any room, and says so where there is none.
    try:
        again = Journal.open(state, RESERVE)
    except JournalError as error:
        assert "make room on the disk" in str(error)  # noqa: PT017 - either is well
    else:
        again.close()
    filler.unlink()
    (disk / "other").unlink()
    again = Journal.open(state, RESERVE)
    assert len(list(again.replay())) == written
    assert again.begin_epoch() == 2
    assert list(again.append(submitted(1))) == [written + 1]
    assert again.problem() == ""
    again.close()


@pytest.mark.root
def test_a_full_disk_at_the_start_has_the_reserve_of_the_last_life(disk: Path) -> None:
    state = disk / "state"
    journal = Journal.open(state, RESERVE)
    journal.begin_epoch()
    journal.append(submitted(1))
    journal.close()
    fill(disk)
    again = Journal.open(state, RESERVE)
    assert again.begin_epoch() == 2
    again.append(submitted(2))
    assert "is full" in again.problem()
    assert [r.seq for r in again.replay()] == [1, 2]
    again.close()
    assert os.listdir(state)


@pytest.mark.root
def test_a_disk_without_inodes_is_full(tmp_path: Path) -> None:
    """Its write-ahead log is a new file at each start."""
    with small_disk(tmp_path / "disk", 64 << 20, inodes=600) as disk:
        journal = Journal.open(disk / "state", RESERVE)
        journal.begin_epoch()
        assert journal.problem() == ""
        files = [disk / str(number) for number in range(400)]
        for file in files:
            file.touch()
        assert "inodes for new files" in journal.problem()
        for file in files:
            file.unlink()
        assert journal.problem() == ""
        journal.close()


@pytest.mark.root
def test_a_disk_that_refuses_writes_is_not_called_full(tmp_path: Path) -> None:
    """Its advice would be to make room, and the reserve would be given away for nothing."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        assert is_full(error, disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert not is_full(error, disk)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        fill(disk)
        assert is_full(error, disk)
        assert [file.name for file in disk.iterdir()] == ["filler"]
