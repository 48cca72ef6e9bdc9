"""Copies of a journal: made beside a coordinator that runs, looked at, and put in its place."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.daemon.durable_files import give_to_owner, lock_directory, sync_directory, sync_file
from muster.daemon.errors import DirectoryLockedError, FileError
from orchestrator.journal import schema
from orchestrator.journal.archive import check_archive
from orchestrator.journal.errors import CorruptJournalError, JournalError, LostTailError
from orchestrator.journal.journal import last_seq, records, refuse_network
from orchestrator.journal.loss import (
    RESTORED,
    SALVAGED,
    last_with_logs,
    refuse_loss,
    remove_leftovers,
    size,
)
from orchestrator.journal.mark import unmark
from orchestrator.journal.reader_pool import frozen, read_only
from orchestrator.journal.records import Recorded
from orchestrator.journal.schema import FILE_NAME, check, upgrade

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

Connect = Callable[[Path], sqlite3.Connection]


def back_up(state_dir: Path, copy: Path, logs: Path | None = None) -> None:
    """Write the journal as it is now to the new file `copy`; a running coordinator goes on. `logs`
    is as in `Journal.open`.

    Raises JournalError and FileError.
    """
    if copy.exists():
        raise FileError(f"{copy} is there already; name a file that is not")
    temporary = copy.with_name(f".{copy.name}.tmp")
    try:
        with contextlib.closing(_existing(state_dir, logs)) as database, _removed(temporary):
            _write_copy(database, temporary)
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
        at_rest = _hold(state_dir, held)
        refuse_network(state_dir)
        refuse_loss(path, logs, at_rest=at_rest)
        look = _in_place if at_rest else read_only
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
        log = copy.with_name(f"{copy.name}-wal")
        if size(log):
            raise JournalError(
                f"{copy} is a journal with a log beside it, and no backup: {log} has what was "
                f"committed last. Take it in first: sqlite3 {copy} "
                "'PRAGMA wal_checkpoint(TRUNCATE)'; or move it away to go without"
            )
        with contextlib.closing(frozen(copy)) as database:
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
    if layout < schema.LAYOUT:
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
    temporary = state_dir / f".{FILE_NAME}.{RESTORED}"
    with lock_directory(state_dir):
        try:
            with _removed(temporary):
                shutil.copyfile(copy, temporary)
                temporary.chmod(0o600)
                with contextlib.closing(
                    sqlite3.connect(temporary, isolation_level=None)
                ) as database:
                    epoch, last_job = _last(path, logs)
                    last_job = max(next_job - 1, last_job, last_with_logs(path, logs))
                    _leave_out(database, epoch, last_job)
                give_to_owner(temporary)
                sync_file(temporary)
                aside = _move_aside(path)
                unmark(path)
                os.replace(temporary, path)
                remove_leftovers(state_dir, FILE_NAME)
                sync_directory(state_dir)
        except (OSError, sqlite3.Error) as error:
            raise FileError(f"{copy} cannot be restored to {path}: {error}") from error
    return aside


@contextlib.contextmanager
def salvaged(
    state_dir: Path, logs: Path | None, judge: Callable[[Examined], object]
) -> Iterator[Path]:
    """A backup of what can be read of a journal that has lost what was written last; it is gone
    when this ends. `judge` raises JournalError at records that do not follow from each other.

    Pages that a damaged log has may be in the database already, newer ones than those in front of
    the damage: of what both give together and what the database alone gives, this is what is whole
    and goes further. Raises DirectoryLockedError, FileError and JournalError.
    """
    path = state_dir / FILE_NAME
    copy = state_dir / f".{FILE_NAME}.{SALVAGED}"
    with lock_directory(state_dir):
        try:
            refuse_loss(path, logs)
        except LostTailError:
            pass
        else:
            raise JournalError(f"{path} lacks nothing; start the coordinator on it as it is")
    with _removed(copy):
        found: tuple[int, Connect] | None = None
        why: Exception | None = None
        for look in (_in_place, frozen):
            try:
                last = _whole_to(look, path, judge)
            except (sqlite3.Error, JournalError) as error:
                why = why or error
                continue
            if found is None or last > found[0]:
                found = last, look
        if found is None:
            raise CorruptJournalError(f"{path} is damaged, too ({why})") from why
        try:
            with contextlib.closing(found[1](path)) as database:
                _write_copy(database, copy)
        except (OSError, sqlite3.Error) as error:
            raise FileError(f"{copy} cannot be written ({error})") from error
        yield copy


def _whole_to(look: Connect, path: Path, judge: Callable[[Examined], object]) -> int:
    """The last record of what is read so. Raises JournalError and sqlite3.Error."""
    with contextlib.closing(look(path)) as database:
        found = _examine(database, path)
        if found is None:
            raise CorruptJournalError("there is nothing in it")
        judge(found)
        return last_seq(database)


def _write_copy(database: sqlite3.Connection, copy: Path) -> None:
    """Write a new file. It has no name of its own, so that it is never taken for the original."""
    database.execute("VACUUM INTO ?", (str(copy),))
    copy.chmod(0o600)
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as written:
        written.execute("DELETE FROM meta WHERE name = 'database'")


@contextlib.contextmanager
def _removed(temporary: Path) -> Iterator[None]:
    """No such file before, and none after, unless it was renamed. Raises OSError."""
    made = (temporary, temporary.with_name(f"{temporary.name}-journal"))
    for one in made:
        one.unlink(missing_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for one in made:
                one.unlink(missing_ok=True)


def _hold(state_dir: Path, held: contextlib.ExitStack) -> bool:
    """Lock the folder until `held` ends; whether nobody else has it, such as a coordinator."""
    try:
        held.enter_context(lock_directory(state_dir))
    except DirectoryLockedError:
        return False
    return True


def _leave_out(database: sqlite3.Connection, last_epoch: int | None, last_job: int) -> None:
    (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
    epoch = epoch + _EPOCHS_LEFT_OUT if last_epoch is None else max(epoch, last_epoch)
    first_job = last_job + 1 + _JOBS_LEFT_OUT
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (epoch,))
    database.execute("INSERT OR REPLACE INTO meta VALUES ('first_job', ?)", (first_job,))
    database.execute("DELETE FROM meta WHERE name = 'database'")
    database.execute("COMMIT")


def _last(path: Path, logs: Path | None) -> tuple[int | None, int]:
    """How many lives the journal in place has had, and its last job; None and 0 where nobody can
    tell any more."""
    try:
        refuse_loss(path, logs)
        complete = True
    except JournalError:
        complete = False
    try:
        with contextlib.closing(_in_place(path)) as database:
            check(database, path)
            (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            (job,) = database.execute(_LAST_JOB).fetchone()
            return int(epoch) if complete else None, int(job)
    except (sqlite3.Error, JournalError, OSError, TypeError, ValueError):
        return None, 0


def _move_aside(path: Path) -> Path:
    number = 1
    while any(Path(f"{path}.replaced-{number}{part}").exists() for part in _PARTS):
        number += 1
    aside = path.with_name(f"{path.name}.replaced-{number}")
    # The log first: a database that stays behind without it is noticed at the next start.
    for part in reversed(_PARTS):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{aside}{part}")
    return aside


def _existing(state_dir: Path, logs: Path | None) -> sqlite3.Connection:
    path = state_dir / FILE_NAME
    # A reader makes a log where there is none, and the next start would not miss the lost one.
    refuse_loss(path, logs, at_rest=False)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal in this state folder")
    with contextlib.ExitStack() as held:
        if _hold(state_dir, held):
            refuse_loss(path, logs)
    return read_only(path)


def _in_place(path: Path) -> sqlite3.Connection:
    """The journal of a folder that is locked; where it has no log, none is made."""
    return read_only(path) if Path(f"{path}-wal").exists() else frozen(path)
