"""The journal as an SQLite database: facts in order, each transaction on disk when it returns.

WAL with full sync, one writer, one connection. The database says what it is (`application_id`)
and which layout it has (`user_version`), so that neither a stranger's file nor a newer layout is
touched.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from muster.daemon.durable_files import DirectoryLock, lock_directory
from muster.daemon.errors import FileError
from muster.daemon.network_fs import network_kind
from orchestrator.core.facts.jobs import Fact
from orchestrator.journal import archive
from orchestrator.journal.archive import Archived
from orchestrator.journal.disk_reserve import DiskReserve, is_full
from orchestrator.journal.errors import (
    CorruptJournalError,
    JournalError,
    JournalFullError,
    JournalWriteError,
)
from orchestrator.journal.loss import database_name, refuse_loss, remove_leftovers
from orchestrator.journal.mark import Mark, Note, unmark
from orchestrator.journal.reader_pool import read_only
from orchestrator.journal.records import COLUMNS, Recorded, from_row, to_row
from orchestrator.journal.schema import FILE_NAME, open_database, take_in_log

_T = TypeVar("_T")
_EVENTS_MAX: Final = 1000
# The log is taken into the database when it has about so many pages; SQLite's own default.
_LOG_PAGES_MAX: Final = 1000
_PAGE_BYTES: Final = 4096
# What a long reader made of the log is cut off, down to twice its usual size and the reserve: on a
# full disk the reserve is room in the log, and given back to the disk anybody could take it.
_LOG_BYTES: Final = 2 * _LOG_PAGES_MAX * _PAGE_BYTES

# SQLite reads both in order and stops at the limit.
_EVENTS: Final = f"""
SELECT {COLUMNS} FROM fact WHERE seq > :after
UNION ALL SELECT {COLUMNS} FROM history WHERE seq > :after
ORDER BY seq LIMIT :limit
"""  # noqa: S608 - its parts are the constants above
_EVENTS_OF_JOB: Final = f"""
SELECT {COLUMNS} FROM fact WHERE job = :job AND seq > :after
UNION ALL SELECT {COLUMNS} FROM history WHERE job = :job AND seq > :after
ORDER BY seq LIMIT :limit
"""  # noqa: S608
_LAST_RECORD: Final = """
SELECT at, seq FROM (
    SELECT * FROM (
        SELECT at, seq FROM fact WHERE kind <> 'EpochStarted' ORDER BY seq DESC LIMIT 1
    ) UNION ALL SELECT * FROM (
        SELECT at, seq FROM history ORDER BY seq DESC LIMIT 1
    )
) ORDER BY seq DESC LIMIT 1
"""


class Journal:
    """The open journal of a state folder, held alone until `close`.

    Its methods wait for the disk, and are to be called from one thread at a time.
    """

    def __init__(
        self, path: Path, database: sqlite3.Connection, lock: DirectoryLock, space: DiskReserve
    ) -> None:
        self.path = path
        self._database = database
        self._lock = lock
        self._space = space
        database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES + space.reserve_bytes}")
        self._log_pages = 0  # about as many as the log has
        self._last_seq = last_seq(database)
        self._mark: Mark | None = None
        self.doubt = ""
        """A sentence where the last transaction before this life was not whole, "" else."""

    @classmethod
    def open(cls, state_dir: Path, reserve_bytes: int = 0, logs: Path | None = None) -> Self:
        """Lock the folder and open its journal, made where there has never been one.

        `reserve_bytes` of its disk are kept for what must be written when that is full. `logs` has
        the output of jobs; None: the folder of that name in `state_dir`. Raises
        DirectoryLockedError (which names the holder), FileError, and JournalError.
        """
        lock = lock_directory(state_dir)
        try:
            refuse_network(state_dir)
            path = state_dir / FILE_NAME
            doubt = refuse_loss(path, logs)
            try:
                remove_leftovers(state_dir, FILE_NAME)
            except OSError as error:
                raise JournalError(f"{state_dir} cannot be written: {error.strerror}") from error
            space = DiskReserve(path, reserve_bytes)
            try:
                database = open_database(path)
                space.keep()
            except JournalFullError:
                if not space.release():
                    raise
                database = open_database(path)
                space.claim()
            try:
                journal = cls(path, database, lock, space)
                journal.doubt = doubt
                return journal
            except sqlite3.Error as error:
                database.close()
                raise CorruptJournalError(f"{path} is damaged ({error})") from error
            except BaseException:
                database.close()
                raise
        except BaseException:
            lock.release()
            raise

    @property
    def first_job(self) -> int:
        """The least number of a new job, which a restored journal has so that none comes twice."""
        row = self._database.execute("SELECT value FROM meta WHERE name = 'first_job'").fetchone()
        return 0 if row is None else int(row[0])

    def tally(self) -> dict[str, int]:
        """How many jobs of each state are in the archive."""
        return archive.tally(self._database)

    def begin_epoch(self) -> int:
        """Count this process as a new owner and return its number, from 1; durable on return."""

        def count() -> int:
            execute = self._database.execute
            execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
            row = execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            return int(row[0])

        epoch = self._write(count)
        try:
            # From now on the log must not get lost. The name is what the file itself says, as it
            # may be in the log alone, for want of room.
            note = Note(database_name(self.path), epoch, self._last_seq, 0)
            if self._mark is not None:
                self._mark.close()
            self._mark = Mark(self.path, note)
        except OSError as error:
            # It is only a guard against losing a file; on a full disk the journal itself goes on.
            if not self._space.problem():
                raise JournalError(
                    f"{self.path.parent} cannot be written: {error.strerror}"
                ) from error
        return epoch

    def append(self, facts: Sequence[tuple[Fact, float]]) -> range:
        """Write facts, each with its moment (UTC seconds), in one transaction.

        Returns their seqs; everything is on disk then. Raises JournalWriteError, and then nothing
        of it was written: the process is to end, as its state is ahead of the disk.
        """
        first = self._last_seq + 1
        rows = [to_row(seq, fact, at) for seq, (fact, at) in enumerate(facts, first)]
        self._write(
            lambda: self._database.executemany(
                "INSERT INTO fact VALUES (?, ?, ?, ?, ?, ?, ?)", rows
            )
        )
        self._last_seq += len(rows)
        if self._mark is not None:
            self._mark.committed(self._last_seq)
        self._log_pages += 4 + sum(2 + len(row[5]) // _PAGE_BYTES for row in rows)
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return range(first, first + len(rows))

    def archive(self, jobs: Sequence[Archived]) -> bool:
        """Move jobs that have ended to the archive, with their facts, in one transaction; on disk
        when it returns. Returns whether there was room: the reserve is not for this.

        Raises JournalWriteError, and then nothing was moved.
        """
        try:
            moved = self._commit(lambda: archive.move(self._database, jobs))
        except sqlite3.Error as error:
            if is_full(error):
                return False
            raise self._write_error(error) from error
        self._log_pages += 4 + 2 * len(jobs) + moved
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return True

    def forget(self, jobs: Sequence[int]) -> dict[str, int] | None:
        """Take jobs out of the archive for ever, in one transaction; how many of each state those
        were, None where there was no room. Raises JournalWriteError, and then none is gone."""
        try:
            states = self._commit(lambda: archive.forget(self._database, jobs))
        except sqlite3.Error as error:
            if is_full(error):
                return None
            raise self._write_error(error) from error
        self._log_pages += 4 + 4 * len(jobs)
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return states

    @property
    def forgotten_to(self) -> int:
        """The greatest number of a job that is not even in the archive any more."""
        return archive.forgotten_to(self._database)

    @property
    def last_record_at(self) -> float | None:
        """When the last record was written (UTC seconds), None where there is none. A start is none
        here: one with a wrong clock would vouch for the next."""
        row = self._database.execute(_LAST_RECORD).fetchone()
        return None if row is None else float(row[0])

    def replay(self) -> Iterator[Recorded]:
        """Every fact that is not in the archive, in order. Raises NewerJournalError and
        CorruptJournalError."""
        return records(self._database, self.path)

    def problem(self) -> str:
        """A sentence where the disk is full, "" where it is not."""
        return self._space.problem()

    def close(self) -> None:
        """Let go of the file and of the folder. Safe to call twice."""
        if self._lock.fileno() < 0:
            return
        if self._mark is not None:
            self._mark.close()
        with contextlib.suppress(sqlite3.Error, OSError):
            take_in_log(self._database, self.path)
        self._database.close()
        if not self.path.with_name(f"{self.path.name}-wal").exists():
            with contextlib.suppress(OSError):
                unmark(self.path)
        self._lock.release()

    def _write(self, work: Callable[[], _T]) -> _T:
        """One transaction, on disk when it returns. Raises JournalWriteError."""
        try:
            return self._commit(work)
        except sqlite3.Error as error:
            # Room that lacks is the one thing that may be mended: nothing was written. After
            # anything else, an fsync above all, nobody knows what is on disk.
            if not is_full(error) or not self._space.spend():
                raise self._write_error(error) from error
        try:
            return self._commit(work)
        except sqlite3.Error as error:
            raise self._write_error(error) from error

    def _commit(self, work: Callable[[], _T]) -> _T:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            done = work()
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        return done

    def _checkpoint(self) -> None:
        self._log_pages = 0
        try:
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            # Where the database finds no room to grow, the log keeps what it has.
            if not is_full(error):
                raise self._write_error(error) from error
        if self._mark is not None:
            self._mark.checkpointed()

    def _write_error(self, error: sqlite3.Error) -> JournalWriteError:
        if is_full(error):
            return JournalWriteError(
                f"{self.path}: the disk is full, and so is what was kept in reserve ({error}); "
                f"nothing was acted on: make room on the disk of {self.path.parent}"
            )
        return JournalWriteError(f"{self.path}: a commit failed ({error}); nothing was acted on")


def refuse_network(state_dir: Path) -> None:
    kind = network_kind(state_dir)
    if kind:
        raise FileError(
            f"{state_dir} is on a network file system ({kind}), where SQLite's locks and shared "
            "memory fail in silence and the journal would be damaged; name a folder on a disk of "
            "this machine with state_dir"
        )


def events(path: Path, *, job: int | None, after_seq: int, limit: int) -> list[Recorded]:
    """Facts after `after_seq`, in order, of one job or (None) of all; at most `limit` <= 1000.

    On a connection of its own, so that a long answer never keeps a commit waiting; it sees what is
    committed and nothing else. Raises JournalError.
    """
    limit = max(0, min(limit, _EVENTS_MAX))
    query = _EVENTS if job is None else _EVENTS_OF_JOB
    try:
        with contextlib.closing(read_only(path)) as database:
            given = {"job": job, "after": after_seq, "limit": limit}
            rows = database.execute(query, given).fetchall()
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be read ({error})") from error
    return [from_row(*row) for row in rows]


def records(database: sqlite3.Connection, path: Path) -> Iterator[Recorded]:
    """As `Journal.replay`."""
    seq = 0
    try:
        rows = database.execute(f"SELECT {COLUMNS} FROM fact ORDER BY seq")  # noqa: S608
        for row in rows:
            yield from_row(*row)
            seq = row[0]
        lacks = _lacks(database)
    except sqlite3.Error as error:
        raise CorruptJournalError(f"{path} is damaged after record {seq} ({error})") from error
    if lacks is not None:
        raise CorruptJournalError(f"{path}: record {lacks} is missing")


def last_seq(database: sqlite3.Connection) -> int:
    """How many facts were ever written: those that are there, and those of the archive."""
    (there,) = database.execute("SELECT count(*) FROM fact").fetchone()
    (moved,) = database.execute("SELECT value FROM meta WHERE name = 'moved'").fetchone()
    return int(there) + int(moved)


def _lacks(database: sqlite3.Connection) -> int | None:
    """The first record that is missing, where one is: numbers are given without a gap."""
    newest = 0
    for table in ("fact", "history"):
        (seq,) = database.execute(f"SELECT max(seq) FROM {table}").fetchone()  # noqa: S608
        newest = max(newest, seq or 0)
    if newest <= last_seq(database):
        return None
    expected = 1
    seqs = database.execute("SELECT seq FROM fact UNION ALL SELECT seq FROM history ORDER BY seq")
    for (seq,) in seqs:
        if seq != expected:
            break
        expected += 1
    return expected
