"""Opening of the journal's database: checks that it is ours, intact and of a known layout."""

import errno
import sqlite3
from pathlib import Path
from typing import Final

from muster.daemon.durable_files import sync_directory, sync_file
from orchestrator.journal.disk_reserve import is_full
from orchestrator.journal.errors import (
    CorruptJournalError,
    ForeignJournalError,
    JournalError,
    JournalFullError,
    NewerJournalError,
)
from orchestrator.journal.loss import size
from orchestrator.journal.mark import close_mark

FILE_NAME: Final = "journal.sqlite"
LAYOUT = 1
UPGRADES: Final[dict[int, str]] = {}
"""The statements that bring a journal from the layout of their number to the next one."""
# A database of this size is checked in about 0.2 s.
_SMALL_BYTES: Final = 64 << 20
_APPLICATION_ID: Final = 0x4D555354  # "MUST"

# A start reads `fact`: the facts of no job, and of jobs outside the archive. Archiving a job moves
# its facts to `history` and counts them in `moved`, which also counts the registrations of nodes
# that newer ones have replaced. The indexes hold every column that lists filter by, so that a list
# reads no other page of a job that it skips.
_MAKE: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE fact (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, schema INTEGER NOT NULL,
    kind TEXT NOT NULL, job INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE INDEX fact_job ON fact (job, seq) WHERE job IS NOT NULL;
CREATE TABLE history (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, schema INTEGER NOT NULL,
    kind TEXT NOT NULL, job INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE INDEX history_job ON history (job, seq);
CREATE TABLE archived (
    job INTEGER PRIMARY KEY, user TEXT NOT NULL, name TEXT NOT NULL, pool TEXT NOT NULL,
    state TEXT NOT NULL, ended_at REAL NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL,
    summary BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE INDEX archived_user ON archived (user, job, name, pool, state);
CREATE INDEX archived_name ON archived (name, job, user, pool, state);
CREATE INDEX archived_pool ON archived (pool, job, user, name, state);
CREATE INDEX archived_state ON archived (state, job, user, name, pool);
CREATE INDEX archived_ended ON archived (ended_at, job);
CREATE INDEX archived_key ON archived (key, user) WHERE key <> '';
CREATE TABLE tally (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0), ('moved', 0);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""  # noqa: S608 - its parts are the constants above


def open_database(path: Path) -> sqlite3.Connection:
    """Open the journal's database at `path` in WAL mode with full sync. Creates it if needed. The
    directory is locked, and `refuse_loss` has passed. Raises JournalError.
    """
    try:
        path.touch(mode=0o600)
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise JournalFullError(
                f"{path} cannot be made: make room on the disk of {path.parent}"
            ) from error
        raise JournalError(
            f"{path} cannot be opened ({error}); give state_dir to the user of this daemon"
        ) from error
    try:
        _prepare(database, path)
    except sqlite3.OperationalError as error:
        database.close()
        if is_full(error, path.parent):
            raise JournalFullError(
                f"{path} cannot be written ({error}): make room on the disk of {path.parent}"
            ) from error
        raise JournalError(
            f"{path} cannot be used ({error}); see that it may be written, that its disk is well "
            "and that no other program has it open"
        ) from error
    except sqlite3.Error as error:
        database.close()
        raise CorruptJournalError(f"{path} is damaged ({error})") from error
    except BaseException:
        database.close()
        raise
    return database


def check(database: sqlite3.Connection, path: Path, *, whole: bool = True) -> int:
    """Check that this is an intact journal of a known layout. Returns its layout. Raises
    JournalError and sqlite3.Error.

    An empty database passes, as layout 0. Without `whole`, a large journal is checked only as far
    as a start reads it, without the archive.
    """
    try:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except UnicodeDecodeError as error:
        # SQLite's error contains the damaged text, so report its reason only.
        raise CorruptJournalError(f"{path} is damaged ({error.reason})") from error
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        if _has_our_mark(path):
            raise CorruptJournalError(f"{path} is damaged ({error})") from error
        raise ForeignJournalError(
            f"{path} is not a journal of Muster ({error}); move it away, or set another state_dir"
        ) from error
    if application != _APPLICATION_ID and (application or layout or tables):
        raise ForeignJournalError(
            f"{path} is a database of another program (application id {application:#x}); "
            "move it away, or set another state_dir"
        )
    if layout > LAYOUT:
        raise NewerJournalError(
            f"{path} has layout {layout} and this Muster knows up to {LAYOUT}; "
            f"start the version that wrote it, or a newer one{_way_back(path)}"
        )
    whole = whole or size(path) <= _SMALL_BYTES
    for part in ("1",) if whole else ("fact", "meta", "tally"):
        try:
            ((verdict,),) = database.execute(f"PRAGMA quick_check({part})").fetchall()
        except UnicodeDecodeError as error:
            # SQLite's error contains the damaged name, so report its reason only.
            raise CorruptJournalError(f"{path} is damaged ({error.reason})") from error
        if verdict != "ok":
            # SQLite's verdict may have several lines.
            raise CorruptJournalError(f"{path} is damaged ({' '.join(verdict.split())})")
    return int(layout)


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    check(database, path, whole=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    # Muster checkpoints the log itself, so that it notices errors.
    database.execute("PRAGMA wal_autocheckpoint = 0")
    (layout,) = database.execute("PRAGMA user_version").fetchone()
    # One transaction: after a crash the file is empty, of the old layout or of the new one.
    if layout == 0:
        database.executescript(_MAKE)
    elif layout < LAYOUT:
        _keep_copy(database, _copy_of(path, layout))
        upgrade(database, layout)
    named = database.execute("SELECT 1 FROM meta WHERE name = 'database'").fetchone()
    try:
        if named is None:
            # Name of this file only: copies get no name.
            database.execute("INSERT INTO meta VALUES ('database', lower(hex(randomblob(16))))")
        # After a failed fsync, the WAL in the page cache may differ from the disk, so write it
        # again.
        take_in_log(database, path)
    except sqlite3.OperationalError as error:
        if not is_full(error, path.parent):
            raise
    except OSError as error:
        raise JournalError(f"{path.parent} cannot be written: {error.strerror}") from error


def take_in_log(database: sqlite3.Connection, path: Path) -> None:
    """Checkpoint the log into the database and truncate it. Raises sqlite3.Error and OSError."""
    busy, pages, taken = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if not busy and pages == taken:
        # Before the log is emptied: an empty log beside a mark means that another program emptied
        # it.
        close_mark(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def upgrade(database: sqlite3.Connection, layout: int) -> None:
    """Upgrade from `layout` (from 1) to the current one, in one transaction."""
    steps = "".join(UPGRADES[number] for number in range(layout, LAYOUT))
    database.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {LAYOUT}; COMMIT;")


def _copy_of(path: Path, layout: int) -> Path:
    """Return the path of the copy that is kept of the journal at `path` before an upgrade from
    `layout`.
    """
    return path.with_name(f"{path.name}.layout-{layout}")


def _keep_copy(database: sqlite3.Connection, copy: Path) -> None:
    """Write the copy under its final name, complete and on disk, so that the upgrade may begin."""
    half = copy.with_name(f".{copy.name}.tmp")
    half.unlink(missing_ok=True)  # left by a crash
    database.execute("VACUUM INTO ?", (str(half),))
    half.chmod(0o600)
    sync_file(half)
    half.rename(copy)
    sync_directory(copy.parent)


def _way_back(path: Path) -> str:
    """Return how to continue with this release if the upgrade's copy is still there."""
    copies = [_copy_of(path, layout) for layout in range(LAYOUT, 0, -1)]
    kept = next((copy for copy in copies if copy.exists()), None)
    if kept is None:
        return ""
    return (
        f"; or go back to what the journal was before that upgrade, without anything that came "
        f"after it: muster restore {kept}"
    )


def _has_our_mark(path: Path) -> bool:
    """True if a file that SQLite cannot read has our application id (SQLite file format, 1.3)."""
    with path.open("rb") as file:
        head = file.read(100)
    return head[68:72] == _APPLICATION_ID.to_bytes(4, "big")
