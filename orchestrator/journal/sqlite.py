"""The journal as an SQLite database: facts in order, each transaction on disk when it returns.

WAL with full sync, one writer, one connection. The database says what it is (`application_id`)
and which layout it has (`user_version`), so that neither a stranger's file nor a newer layout is
touched.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from muster.daemon.files import DirectoryLock, lock_directory
from orchestrator.core.facts import Durable
from orchestrator.journal.errors import (
    CorruptJournalError,
    ForeignJournalError,
    JournalError,
    JournalWriteError,
    NewerJournalError,
)
from orchestrator.journal.records import Recorded, from_row, to_row

FILE_NAME: Final = "journal.sqlite"
LAYOUT: Final = 1
_APPLICATION_ID: Final = 0x4D555354  # "MUST"
_EVENTS_MAX: Final = 1000

_MAKE: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE fact (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, schema INTEGER NOT NULL,
    kind TEXT NOT NULL, job INTEGER, body BLOB NOT NULL
);
CREATE INDEX fact_job ON fact (job, seq) WHERE job IS NOT NULL;
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""  # noqa: S608 - its parts are the two numbers above

_EVENTS: Final = """
SELECT seq, at, schema, body FROM fact WHERE seq > :after ORDER BY seq LIMIT :limit
"""
_EVENTS_OF_JOB: Final = """
SELECT seq, at, schema, body FROM fact WHERE job = :job AND seq > :after ORDER BY seq LIMIT :limit
"""


class Journal:
    """The open journal of a state folder, held alone until `close`.

    Its methods wait for the disk, and are to be called from one thread at a time.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, lock: DirectoryLock) -> None:
        self.path = path
        self._database = database
        self._lock = lock
        row = database.execute("SELECT coalesce(max(seq), 0) FROM fact").fetchone()
        self._last_seq: int = row[0]

    @classmethod
    def open(cls, state_dir: Path) -> Self:
        """Lock the folder and open its journal, made where there is none.

        Raises DirectoryLockedError (which names the holder), FileError, and JournalError.
        """
        lock = lock_directory(state_dir)
        try:
            path = state_dir / FILE_NAME
            database = _connect(path)
            try:
                _prepare(database, path)
                return cls(path, database, lock)
            except sqlite3.OperationalError as error:
                database.close()
                raise JournalError(
                    f"{path} cannot be used ({error}); see that the disk is well and that no "
                    "other program has the file open"
                ) from error
            except sqlite3.Error as error:
                database.close()
                raise CorruptJournalError(
                    f"{path} is damaged ({error}); restore the state folder from a backup"
                ) from error
            except BaseException:
                database.close()
                raise
        except BaseException:
            lock.release()
            raise

    def begin_epoch(self) -> int:
        """Count this process as a new owner and return its number, from 1; durable on return."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
            row = self._database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._write_error(error) from error
        epoch: int = row[0]
        return epoch

    def append(self, facts: Sequence[tuple[Durable, float]]) -> range:
        """Write facts, each with its moment (UTC seconds), in one transaction.

        Returns their seqs; everything is on disk then. Raises JournalWriteError, and then nothing
        of it was written: the process is to end, as its state is ahead of the disk.
        """
        first = self._last_seq + 1
        rows = [(seq, *to_row(fact, at)) for seq, (fact, at) in enumerate(facts, first)]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO fact VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._write_error(error) from error
        self._last_seq += len(rows)
        return range(first, first + len(rows))

    def replay(self) -> Iterator[Recorded]:
        """Every fact from the first on. Raises NewerJournalError and CorruptJournalError."""
        rows = self._database.execute("SELECT seq, at, schema, body FROM fact ORDER BY seq")
        for expected, (seq, at, schema, body) in enumerate(rows, 1):
            if seq != expected:
                raise CorruptJournalError(
                    f"{self.path}: record {expected} is missing; restore the state folder from "
                    "a backup"
                )
            yield from_row(seq, at, schema, body)

    def close(self) -> None:
        """Let go of the file and of the folder. Safe to call twice."""
        self._database.close()
        self._lock.release()

    def _write_error(self, error: sqlite3.Error) -> JournalWriteError:
        return JournalWriteError(f"{self.path}: a commit failed ({error}); nothing was acted on")


def events(path: Path, *, job: int | None, after_seq: int, limit: int) -> list[Recorded]:
    """Facts after `after_seq`, in order, of one job or (None) of all; at most `limit` <= 1000.

    On a connection of its own, so that a long answer never keeps a commit waiting; it sees what is
    committed and nothing else. Raises JournalError.
    """
    limit = max(0, min(limit, _EVENTS_MAX))
    query = _EVENTS if job is None else _EVENTS_OF_JOB
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            given = {"job": job, "after": after_seq, "limit": limit}
            rows = database.execute(query, given).fetchall()
        finally:
            database.close()
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be read ({error})") from error
    return [from_row(*row) for row in rows]


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.touch(mode=0o600)
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(
            f"{path} cannot be opened ({error}); give state_dir to the user of this daemon"
        ) from error


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    try:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise ForeignJournalError(
            f"{path} is no journal of Muster ({error}); move it away, or set another state_dir"
        ) from error
    if application != _APPLICATION_ID and (application or layout or tables):
        raise ForeignJournalError(
            f"{path} is a database of another program (application id {application:#x}); "
            "move it away, or set another state_dir"
        )
    if layout > LAYOUT:
        raise NewerJournalError(
            f"{path} has layout {layout} and this Muster knows up to {LAYOUT}; "
            "start the version that wrote it, or a newer one"
        )
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if application != _APPLICATION_ID:
        # One transaction: a crash leaves an empty file or a whole journal.
        database.executescript(_MAKE)
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise CorruptJournalError(
            f"{path} is damaged ({verdict}); restore the state folder from a backup"
        )
