"""The journal as an SQLite database: facts in order; each transaction is on disk on return.

WAL with full sync, one writer, one connection. The database has an `application_id` and a layout in
`user_version`, so that neither a foreign file nor a newer layout is changed.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from muster.daemon.durable_files import DirectoryLock, lock_directory
from muster.daemon.errors import FileError
from muster.daemon.network_fs import network_kind
from orchestrator.core.facts.cluster import NodeRegistered
from orchestrator.core.facts.jobs import Fact
from orchestrator.core.facts.service import NodeRemoved
from orchestrator.journal import archive
from orchestrator.journal.archive import Archived
from orchestrator.journal.disk_reserve import DiskReserve
from orchestrator.journal.errors import (
    CorruptJournalError,
    JournalError,
    JournalFullError,
    JournalWriteError,
)
from orchestrator.journal.loss import database_name, refuse_loss, remove_leftovers
from orchestrator.journal.mark import JournalMark, Note, close_mark
from orchestrator.journal.records import COLUMNS, Recorded, from_row, to_row
from orchestrator.journal.schema import FILE_NAME, open_database, take_in_log

_T = TypeVar("_T")
_EVENTS_MAX: Final = 1000
# Pages at which the log is checkpointed; SQLite's own default.
_LOG_PAGES_MAX: Final = 1000
_PAGE_BYTES: Final = 4096
# A long reader lets the log grow. It is truncated to twice its usual size plus the reserve: on a
# full disk the reserve lies in the log, and any process could take released blocks.
_LOG_BYTES: Final = 2 * _LOG_PAGES_MAX * _PAGE_BYTES

# SQLite merges both in order and stops at the limit.
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
    """The open journal of a state directory, locked until `close`.

    Its methods block on the disk. Call them from one thread at a time.
    """

    def __init__(
        self, path: Path, database: sqlite3.Connection, lock: DirectoryLock, space: DiskReserve
    ) -> None:
        self.path = path
        self._database = database
        self._lock = lock
        self._space = space
        database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES + space.reserve_bytes}")
        self._log_pages = 0  # approximate number of pages in the log
        self._last_seq = last_seq(database)
        self._epoch: int | None = None  # of this process, once it has begun one
        self._mark: JournalMark | None = None
        self._registrations: dict[str, int | None] = {}
        """The newest of each node in this process that the next one replaces; None: it stays."""
        self.doubt = ""
        """A sentence if the last transaction of the previous process was incomplete, else ""."""

    @classmethod
    def open(cls, state_dir: Path, reserve_bytes: int = 0, logs: Path | None = None) -> Self:
        """Lock the directory and open its journal. Creates it if there never was one.

        `reserve_bytes` are kept for writes that must succeed on a full disk. `logs` is the
        directory of job output (None: `logs` in `state_dir`). Raises DirectoryLockedError (which
        names the holder), FileError, and JournalError.
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
        """Smallest number for a new job. A restored journal sets it so that no number is reused."""
        row = self._database.execute("SELECT value FROM meta WHERE name = 'first_job'").fetchone()
        return 0 if row is None else int(row[0])

    def tally(self) -> dict[str, int]:
        """Return the number of archived jobs by state."""
        return archive.tally(self._database)

    def begin_epoch(self) -> int:
        """Count this process as a new owner and return its number, from 1. Durable on return."""

        def count() -> int:
            execute = self._database.execute
            execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
            row = execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            return int(row[0])

        self._epoch = None
        epoch = self._epoch = self._write(count)
        try:
            # From now on the log must not get lost. Read the name from the file itself, because on
            # a full disk it may be in the log only.
            note = Note(database_name(self.path), epoch, self._last_seq, 0)
            if self._mark is not None:
                self._mark.close()
            self._mark = JournalMark(self.path, note)
        except OSError as error:
            # The mark only guards against the loss of a file. On a full disk the journal works
            # without it.
            if not self._space.problem():
                raise JournalError(
                    f"{self.path.parent} cannot be written: {error.strerror}"
                ) from error
        return epoch

    def append(self, facts: Sequence[tuple[Fact, float]]) -> range:
        """Write facts, each with its time (UTC seconds), in one transaction.

        Returns their seqs; everything is on disk then. On JournalWriteError nothing was written,
        and the process must exit, because its state is ahead of the disk.
        """
        first = self._last_seq + 1
        rows = [to_row(seq, fact, at) for seq, (fact, at) in enumerate(facts, first)]
        replaced = self._replaced(facts, first)

        def write() -> None:
            self._database.executemany("INSERT INTO fact VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if replaced:
                archive.drop(self._database, replaced)

        self._write(write)
        self._last_seq += len(rows)
        if self._mark is not None:
            self._mark.committed(self._last_seq)
        self._log_pages += 4 + sum(2 + len(row[5]) // _PAGE_BYTES for row in rows)
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return range(first, first + len(rows))

    def _replaced(self, facts: Sequence[tuple[Fact, float]], first: int) -> list[int]:
        """The seqs of registrations that say nothing any more once `facts` are written.

        The first one of a node in this process stays, as facts after it rest on the node's being
        there. No fact of this process rests on what a later one says.
        """
        found: list[int] = []
        for seq, (fact, _) in enumerate(facts, first):
            match fact:
                case NodeRegistered(node) if node in self._registrations:
                    older = self._registrations[node]
                    found += [] if older is None else [older]
                    self._registrations[node] = seq
                case NodeRegistered(node):
                    self._registrations[node] = None
                case NodeRemoved(node):
                    self._registrations.pop(node, None)
                case _:
                    pass
        return found

    def archive(self, jobs: Sequence[Archived]) -> bool:
        """Move ended jobs and their facts to the archive in one transaction, on disk on return.
        Returns False if the disk is full, because the reserve is not used for this.

        On JournalWriteError nothing was moved.
        """
        try:
            moved = self._commit(lambda: archive.move(self._database, jobs))
        except sqlite3.Error as error:
            if self._space.is_full(error):
                return False
            raise self._write_error(error) from error
        self._log_pages += 4 + 2 * len(jobs) + moved
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return True

    def forget(self, jobs: Sequence[int]) -> dict[str, int] | None:
        """Delete jobs from the archive in one transaction. Returns how many of each state were
        deleted, or None if the disk is full. On JournalWriteError nothing was deleted.
        """
        try:
            states = self._commit(lambda: archive.forget(self._database, jobs))
        except sqlite3.Error as error:
            if self._space.is_full(error):
                return None
            raise self._write_error(error) from error
        self._log_pages += 4 + 4 * len(jobs)
        if self._log_pages >= _LOG_PAGES_MAX:
            self._checkpoint()
        return states

    @property
    def forgotten_to(self) -> int:
        """Return the greatest number of a job that was deleted from the archive."""
        return archive.forgotten_to(self._database)

    @property
    def last_record_at(self) -> float | None:
        """Return the time of the last record (UTC seconds), or None. Starts do not count: one with
        a wrong clock would make the next one trust it.
        """
        row = self._database.execute(_LAST_RECORD).fetchone()
        return None if row is None else float(row[0])

    def replay(self) -> Iterator[Recorded]:
        """Return all facts outside the archive, in order. Raises NewerJournalError and
        CorruptJournalError.
        """
        return records(self._database, self.path)

    def problem(self) -> str:
        """Return a sentence if the disk is full, else ""."""
        return self._space.problem()

    def close(self) -> None:
        """Release the file and the directory. Safe to call twice."""
        if self._lock.fileno() < 0:
            return
        if self._mark is not None:
            self._mark.close()
        with contextlib.suppress(sqlite3.Error, OSError):
            take_in_log(self._database, self.path)
        self._database.close()
        if not self.path.with_name(f"{self.path.name}-wal").exists():
            with contextlib.suppress(OSError):
                close_mark(self.path)
        self._lock.release()

    def _write(self, work: Callable[[], _T]) -> _T:
        """Run one transaction, on disk on return. Raises JournalWriteError."""
        try:
            return self._commit(work)
        except sqlite3.Error as error:
            # A full disk is the only recoverable error: nothing was written. After any other error,
            # above all of an fsync, the state of the disk is unknown.
            if not self._space.is_full(error) or not self._space.spend():
                raise self._write_error(error) from error
        try:
            return self._commit(work)
        except sqlite3.Error as error:
            raise self._write_error(error) from error

    def _commit(self, work: Callable[[], _T]) -> _T:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._check_epoch()
            done = work()
            self._database.execute("COMMIT")
        except (sqlite3.Error, JournalWriteError):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        return done

    def _check_epoch(self) -> None:
        """Refuse to write beside a later process, as after somebody removed the lock's file. Raises
        JournalWriteError."""
        if self._epoch is None:
            return
        (epoch,) = self._database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
        if epoch != self._epoch:
            raise JournalWriteError(
                f"{self.path}: another coordinator has begun epoch {epoch} here, and this one is "
                f"of epoch {self._epoch}; nothing was acted on: run one coordinator with "
                f"{self.path.parent}, and never remove the lock in it"
            )

    def _checkpoint(self) -> None:
        self._log_pages = 0
        try:
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            # If the database cannot grow, the log keeps its contents.
            if not self._space.is_full(error):
                raise self._write_error(error) from error
        if self._mark is not None:
            self._mark.checkpointed()

    def _write_error(self, error: sqlite3.Error) -> JournalWriteError:
        if self._space.is_full(error):
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


def events(
    database: sqlite3.Connection, *, job: int | None, after_seq: int, limit: int, bytes_max: int
) -> list[Recorded]:
    """Return facts after `after_seq`, in order, of one job or (None) of all; at most `limit` <=
    1000. The first one is always among them, and the last is the one that reaches `bytes_max`.

    Raises sqlite3.Error and JournalError.
    """
    limit = max(0, min(limit, _EVENTS_MAX))
    query = _EVENTS if job is None else _EVENTS_OF_JOB
    given = {"job": job, "after": after_seq, "limit": limit}
    found, size = [], 0
    with contextlib.closing(database.execute(query, given)) as rows:
        for row in rows:
            found.append(from_row(*row))
            size += len(row[5])
            if size >= bytes_max:
                break
    return found


def records(database: sqlite3.Connection, path: Path) -> Iterator[Recorded]:
    """Return records as `Journal.replay` does."""
    seq = 0
    try:
        rows = database.execute(f"SELECT {COLUMNS} FROM fact ORDER BY seq")  # noqa: S608
        for row in rows:
            yield from_row(*row)
            seq = row[0]
        missing = _missing_record(database)
    except sqlite3.Error as error:
        raise CorruptJournalError(f"{path} is damaged after record {seq} ({error})") from error
    if missing is not None:
        raise CorruptJournalError(f"{path}: record {missing} is missing")


def last_seq(database: sqlite3.Connection) -> int:
    """Return how many facts were ever written, including those of the archive."""
    (there,) = database.execute("SELECT count(*) FROM fact").fetchone()
    (moved,) = database.execute("SELECT value FROM meta WHERE name = 'moved'").fetchone()
    return int(there) + int(moved)


def _missing_record(database: sqlite3.Connection) -> int | None:
    """Return the first missing record, or None: numbers have no gaps."""
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
