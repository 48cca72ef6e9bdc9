"""Copies of a journal: made beside a coordinator that runs, looked at, and put in its place."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.daemon.errors import DirectoryLockedError, FileError
from muster.daemon.files import give_to_owner, lock_directory, sync_directory, sync_file
from orchestrator.journal.archive import check_archive
from orchestrator.journal.errors import CorruptJournalError, JournalError
from orchestrator.journal.opening import (
    FILE_NAME,
    LAYOUT,
    check,
    last_with_logs,
    refuse_loss,
    unmark,
    upgrade,
)
from orchestrator.journal.records import Recorded
from orchestrator.journal.sqlite import read_only, records, refuse_network

# Lives and jobs that the backup knows nothing of may have been: numbers are left out for them.
_EPOCHS_LEFT_OUT: Final = 1_000_000
_JOBS_LEFT_OUT: Final = 1000
# Jobs that went to the archive are below `first_job`.
_LAST_JOB: Final = """
SELECT max(
    coalesce((SELECT max(job) FROM fact), 0),
    coalesce((SELECT value - 1 FROM meta WHERE name = 'first_job'), 0)
)
"""
_PARTS: Final = ("", "-wal", "-shm")


def back_up(state_dir: Path, copy: Path, logs: Path | None = None) -> None:
    """Write the journal as it is now to the new file `copy`; a running coordinator goes on. `logs`
    is as in `Journal.open`.

    Raises JournalError and FileError.
    """
    if copy.exists():
        raise FileError(f"{copy} is there already; name a file that is not")
    try:
        with contextlib.closing(_existing(state_dir, logs)) as database:
            temporary = copy.with_name(f".{copy.name}.tmp")
            temporary.unlink(missing_ok=True)
            database.execute("VACUUM INTO ?", (str(temporary),))
            temporary.chmod(0o600)
            sync_file(temporary)
            os.replace(temporary, copy)
            sync_directory(copy.parent)
    except OSError as error:
        raise FileError(f"{copy} cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise JournalError(
            f"{state_dir / FILE_NAME} cannot be copied to {copy} ({error})"
        ) from error


@dataclass(frozen=True, slots=True)
class Examined:
    """A journal that is whole: its records that are not in the archive, how many jobs are there,
    and the least number that a new job has because of them."""

    records: Iterator[Recorded]
    archived: int = 0
    first_job: int = 0

    def __iter__(self) -> Iterator[Recorded]:
        return self.records


@contextlib.contextmanager
def examined(state_dir: Path, logs: Path | None = None) -> Iterator[Examined]:
    """The journal of a state folder, after the checks of a start and a look at every record;
    nothing is changed. `logs` is as in `Journal.open`. Raises JournalError."""
    path = state_dir / FILE_NAME
    if not path.exists():
        refuse_loss(path, logs)
        yield Examined(iter(()))
        return
    with contextlib.ExitStack() as held:
        look = read_only
        with contextlib.suppress(DirectoryLockedError):  # a coordinator runs
            held.enter_context(lock_directory(state_dir))
            look = _in_place
        refuse_network(state_dir)
        refuse_loss(path, logs)
        try:
            database = held.enter_context(contextlib.closing(look(path)))
            yield _examine(database, path) or Examined(iter(()))
        except sqlite3.OperationalError as error:
            raise JournalError(
                f"{path} cannot be read ({error}); see that its disk is well and that it belongs "
                "to the user of this daemon"
            ) from error
        except sqlite3.Error as error:
            raise CorruptJournalError(f"{path} is damaged ({error})") from error


@contextlib.contextmanager
def examined_copy(copy: Path) -> Iterator[Examined]:
    """A backup, looked at whole. Raises JournalError."""
    try:
        if not copy.is_file():
            raise JournalError(f"{copy}: there is no such file")
        with contextlib.closing(_frozen(copy)) as database:
            found = _examine(database, copy)
            if found is None:
                raise JournalError(f"{copy} is empty, so no backup of a journal")
            yield found
    except sqlite3.Error as error:
        raise CorruptJournalError(f"{copy} is damaged ({error})") from error


def _examine(database: sqlite3.Connection, path: Path) -> Examined | None:
    """None: there is nothing in it."""
    layout = check(database, path)
    if layout == 0:
        return None
    database.execute("BEGIN")  # one view of it all: a coordinator may be at work
    if layout < LAYOUT:
        # In a file of its own, which nobody else sees.
        older, database = database, sqlite3.connect("", isolation_level=None)
        older.backup(database)
        upgrade(database, layout)
    archived = check_archive(database, path)
    row = database.execute("SELECT value FROM meta WHERE name = 'first_job'").fetchone()
    return Examined(records(database, path), archived, 0 if row is None else int(row[0]))


def restore(state_dir: Path, copy: Path, next_job: int, logs: Path | None = None) -> Path:
    """Put a backup that was examined in the place of the journal; returns what the old one is
    called now.

    `next_job` follows the last job that the backup knows. Jobs and lives that came after it may
    have left traces on nodes, so that their numbers are not used again: the journal in place and
    `logs`, as in `Journal.open`, tell of them. Raises DirectoryLockedError, FileError and
    JournalError.
    """
    path = state_dir / FILE_NAME
    with lock_directory(state_dir):
        try:
            temporary = state_dir / f".{FILE_NAME}.restored"
            temporary.unlink(missing_ok=True)
            shutil.copyfile(copy, temporary)
            temporary.chmod(0o600)
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as database:
                epoch, last_job = _last(path)
                last_job = max(next_job - 1, last_job, last_with_logs(path, logs))
                _leave_out(database, epoch, last_job)
            give_to_owner(temporary)
            sync_file(temporary)
            aside = _move_aside(path)
            unmark(path)
            os.replace(temporary, path)
            sync_directory(state_dir)
        except (OSError, sqlite3.Error) as error:
            raise FileError(f"{copy} cannot be restored to {path}: {error}") from error
    return aside


def _leave_out(database: sqlite3.Connection, last_epoch: int | None, last_job: int) -> None:
    (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
    epoch = epoch + _EPOCHS_LEFT_OUT if last_epoch is None else max(epoch, last_epoch)
    first_job = last_job + 1 + _JOBS_LEFT_OUT
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (epoch,))
    database.execute("INSERT OR REPLACE INTO meta VALUES ('first_job', ?)", (first_job,))
    database.execute("COMMIT")


def _last(path: Path) -> tuple[int | None, int]:
    """How many lives the journal in place has had, and its last job; (None, 0) where nobody can
    tell any more."""
    try:
        with contextlib.closing(_in_place(path)) as database:
            check(database, path)
            (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            (job,) = database.execute(_LAST_JOB).fetchone()
            return int(epoch), int(job)
    except (sqlite3.Error, JournalError, OSError, TypeError, ValueError):
        return None, 0


def _move_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    # The log first: a database that stays behind without it is noticed at the next start.
    for part in reversed(_PARTS):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{aside}{part}")
    return aside


def _existing(state_dir: Path, logs: Path | None) -> sqlite3.Connection:
    path = state_dir / FILE_NAME
    # A reader makes a log where there is none, and the next start would not miss the lost one.
    refuse_loss(path, logs)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal in this state folder")
    return read_only(path)


def _in_place(path: Path) -> sqlite3.Connection:
    """The journal of a folder that is locked; where it has no log, none is made."""
    return read_only(path) if Path(f"{path}-wal").exists() else _frozen(path)


def _frozen(copy: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
