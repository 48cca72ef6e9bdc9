"""Backup and restore of a journal: copy it beside a running coordinator, verify, replace."""

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from muster.daemon.durable_files import (
    give_to_owner,
    lock_directory,
    sync_directory,
    sync_file,
    write_atomic,
)
from muster.daemon.errors import DirectoryLockedError, FileError
from muster.protocol.ids import JobId
from orchestrator.core.facts.restored import JournalRestored
from orchestrator.journal import schema
from orchestrator.journal.archive import check_archive
from orchestrator.journal.errors import CorruptJournalError, JournalError, LostTailError
from orchestrator.journal.journal import last_seq, records, refuse_network
from orchestrator.journal.left_out import (
    ATTEMPTS_LEFT_OUT,
    Later,
    first_attempt,
    later_than,
    leave_out,
)
from orchestrator.journal.loss import (
    LAST_JOB,
    REPLACED,
    RESTORED,
    RESTORING,
    SALVAGED,
    half_restored,
    last_with_logs,
    refuse_loss,
    remove_leftovers,
    size,
)
from orchestrator.journal.mark import CLOSED_NAME
from orchestrator.journal.mark import FILE_NAME as OPEN_NAME
from orchestrator.journal.new_file import new_file
from orchestrator.journal.reader_pool import frozen, read_only
from orchestrator.journal.records import Recorded
from orchestrator.journal.schema import FILE_NAME, check, upgrade

# The log first: a database that stays behind without it is noticed at the next start.
_PARTS: Final = ("-shm", "-wal", "")

# Marker file in a job's log folder: retention has removed the logs.
REMOVED_NAME: Final = "removed"
# The node ranks of the tasks of an attempt that wrote nothing, in the folder of the attempt's logs.
SILENT_NAME: Final = "silent"

Connect = Callable[[Path], sqlite3.Connection]


def back_up(state_dir: Path, copy: Path, logs: Path | None = None) -> None:
    """Write the current journal to the new file `copy` while the coordinator runs. `logs` is as in
    `Journal.open`.

    Raises JournalError and FileError.
    """
    try:
        with new_file(copy) as temporary, contextlib.closing(_existing(state_dir, logs)) as found:
            _write_copy(found, temporary)
    except OSError as error:
        raise FileError(f"{copy} cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise JournalError(
            f"{state_dir / FILE_NAME} cannot be copied to {copy} ({error})"
        ) from error


@dataclass(frozen=True, slots=True)
class Examined:
    """A verified journal: its records outside the archive, the number of archived jobs, and the
    smallest number for a new job.
    """

    records: Iterator[Recorded]
    archived: int = 0
    first_job: int = 0

    def __iter__(self) -> Iterator[Recorded]:
        return self.records


@contextlib.contextmanager
def examined(state_dir: Path, logs: Path | None = None) -> Iterator[Examined]:
    """Verify the journal of a state directory: the checks of a start, and every record. Changes
    nothing. `logs` is as in `Journal.open`. Raises JournalError.
    """
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
                f"{path} cannot be read ({error}); check its disk, and that it belongs "
                "to the user of this daemon"
            ) from error
        except sqlite3.Error as error:
            raise CorruptJournalError(f"{path} is damaged ({error})") from error


@contextlib.contextmanager
def examined_copy(copy: Path) -> Iterator[Examined]:
    """Verify every record of a backup. Raises JournalError."""
    try:
        _refuse_no_file(copy)
        log = copy.with_name(f"{copy.name}-wal")
        if size(log):
            raise JournalError(
                f"{copy} is a journal with a log beside it, not a backup: {log} has what was "
                f"committed last. Take it in first: sqlite3 {copy} "
                "'PRAGMA wal_checkpoint(TRUNCATE)'; or move it away to go without"
            )
        with contextlib.closing(frozen(copy)) as database:
            found = _examine(database, copy)
            if found is None:
                raise JournalError(f"{copy} is empty, so it is not a backup of a journal")
            yield found
    except sqlite3.Error as error:
        raise CorruptJournalError(f"{copy} is damaged ({error})") from error


def _refuse_no_file(copy: Path) -> None:
    try:
        if not stat.S_ISREG(copy.stat().st_mode):
            kind = "a folder" if copy.is_dir() else "no regular file"
            raise JournalError(f"{copy} is {kind}; name a file that `muster backup` has written")
        with copy.open("rb"):
            pass
    except FileNotFoundError as error:
        raise JournalError(f"{copy}: there is no such file") from error
    except OSError as error:
        raise JournalError(f"{copy} cannot be read ({error.strerror})") from error


def _examine(database: sqlite3.Connection, path: Path) -> Examined | None:
    """Verify a database. Returns None if it is empty."""
    layout = check(database, path)
    if layout == 0:
        return None
    database.execute("BEGIN")  # one consistent snapshot, because a coordinator may be running
    if layout < schema.LAYOUT:
        # Upgrade a private copy, which nobody else sees.
        older, database = database, sqlite3.connect("", isolation_level=None)
        older.backup(database)
        upgrade(database, layout)
    archived = check_archive(database, path)
    row = database.execute("SELECT value FROM meta WHERE name = 'first_job'").fetchone()
    return Examined(records(database, path), archived, 0 if row is None else int(row[0]))


class Replaced(NamedTuple):
    """The new name of the journal that was in place, None if there was none, and the last job that
    is known to have been there or whose number was left out for one that may have been. `later` is
    what else is known of the time since the backup."""

    journal: Path | None
    last_job: int
    later: Later


def restore(
    state_dir: Path,
    copy: Path,
    next_job: int,
    logs: Path | None = None,
    attempts: Mapping[JobId, Mapping[int, int]] | None = None,
    *,
    at: float = 0.0,
    go: bool = False,
) -> Replaced:
    """Replace the journal by a verified backup.

    `next_job` follows the last job in the backup. Later jobs and epochs may have left traces on
    nodes, so their numbers are not reused. They are found in the current journal and in `logs` (as
    in `Journal.open`). `attempts` has, for each job that has not ended by the backup, the number of
    tasks of each attempt. New attempts leave numbers out as well. The logs of later attempts, and
    of nodes that joined an attempt, are renamed, because the restored journal does not know them.
    Its last record, of the time `at` (UTC seconds), makes the coordinator wait for all nodes before
    it places anything, unless `go`.

    Raises DirectoryLockedError, FileError and JournalError.
    """
    path = state_dir / FILE_NAME
    temporary = state_dir / f".{FILE_NAME}.{RESTORED}"
    stored = logs or state_dir / "logs"
    with lock_directory(state_dir):
        _undo(path)
        try:
            with _removed(temporary):
                shutil.copyfile(copy, temporary)
                temporary.chmod(0o600)
                with contextlib.closing(
                    sqlite3.connect(temporary, isolation_level=None)
                ) as database:
                    epoch, last_job = _last(path, logs)
                    last_job = max(next_job - 1, last_job, last_with_logs(path, logs))
                    last_attempts = {
                        job: max(of, default=0) for job, of in (attempts or {}).items()
                    }
                    later = later_than(last_attempts, path, partial(_in_place, path), stored)
                    first = first_attempt(_free_number(path))
                    known = tuple(sorted(later.attempts.items()))
                    record = JournalRestored(ATTEMPTS_LEFT_OUT, later.nodes, known, go, first)
                    leave_out(database, epoch, last_job, record, at)
                give_to_owner(temporary)
                sync_file(temporary)
                aside = _swap(
                    path,
                    temporary,
                    lambda: _set_logs_aside(stored, attempts or {}),
                )
                remove_leftovers(state_dir, FILE_NAME)
                sync_directory(state_dir)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(FileError):
                _undo(path)
            raise FileError(f"{copy} cannot be restored to {path}: {error}") from error
    return Replaced(aside, last_job, later)


def undo_interrupted_restore(state_dir: Path) -> None:
    """Put the old journal back where a restore was killed between its renames. Raises
    DirectoryLockedError, FileError and JournalError."""
    path = state_dir / FILE_NAME
    if half_restored(path) is not None:
        with lock_directory(state_dir):
            _undo(path)


@contextlib.contextmanager
def salvaged(
    state_dir: Path, logs: Path | None, judge: Callable[[Examined], object]
) -> Iterator[Path]:
    """Yield a backup of the readable part of a journal that lost its last writes. The file is
    deleted at the end. `judge` raises JournalError if records contradict each other.

    A checkpoint may have copied pages behind the damage into the database already. So both readings
    are tried, the database with its log and the database alone; the intact one that reaches further
    wins. Raises DirectoryLockedError, FileError and JournalError.
    """
    path = state_dir / FILE_NAME
    copy = state_dir / f".{FILE_NAME}.{SALVAGED}"
    with lock_directory(state_dir):
        _undo(path)
        try:
            refuse_loss(path, logs)
        except LostTailError:
            pass
        else:
            raise JournalError(f"{path} is complete; start the coordinator with it")
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
    """Return the number of the last record read in this way. Raises JournalError and
    sqlite3.Error.
    """
    with contextlib.closing(look(path)) as database:
        found = _examine(database, path)
        if found is None:
            raise CorruptJournalError("there is nothing in it")
        judge(found)
        return last_seq(database)


def _write_copy(database: sqlite3.Connection, copy: Path) -> None:
    """Write a new file. Its database name is removed, so that it is never taken for the
    original.
    """
    copy.touch(mode=0o600)  # an error of this names its cause, and one of SQLite does not
    database.execute("VACUUM INTO ?", (str(copy),))
    copy.chmod(0o600)
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as written:
        written.execute("DELETE FROM meta WHERE name = 'database'")


@contextlib.contextmanager
def _removed(temporary: Path) -> Iterator[None]:
    """Remove the file before and after, unless it was renamed. Raises OSError."""
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
    """Lock the directory until `held` ends. Returns False if another process holds it."""
    try:
        held.enter_context(lock_directory(state_dir))
    except DirectoryLockedError:
        return False
    return True


def _last(path: Path, logs: Path | None) -> tuple[int | None, int]:
    """Return the number of epochs and the last job of the current journal; None and 0 if
    unknown.
    """
    try:
        refuse_loss(path, logs)
        complete = True
    except JournalError:
        complete = False
    try:
        with contextlib.closing(_in_place(path)) as database:
            check(database, path)
            (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            (job,) = database.execute(LAST_JOB).fetchone()
            return int(epoch) if complete else None, int(job)
    except (sqlite3.Error, JournalError, OSError, TypeError, ValueError):
        return None, 0


def _set_logs_aside(logs: Path, attempts: Mapping[JobId, Mapping[int, int]]) -> None:
    """Rename the logs of attempts and tasks that are not known, `1` to `1.replaced-1`, and remove
    the mark of logs that were removed: the next run would be taken for delivered. Raises OSError
    and FileError.
    """
    for job, known in attempts.items():
        folder = logs / str(job)
        names = _entries(folder)
        for name in names:
            if name.isdecimal() and int(name) not in known:
                _rename_aside(folder, name)
        if REMOVED_NAME in names:
            os.unlink(folder / REMOVED_NAME)
        if names:
            sync_directory(folder)
        for attempt, tasks in known.items():
            _set_tasks_aside(folder / str(attempt), tasks)


def _set_tasks_aside(folder: Path, tasks: int) -> None:
    """Rename the logs of the tasks of an attempt after the first `tasks`. Raises OSError and
    FileError."""
    names = _entries(folder)
    unknown = [name for name in names if name.isdecimal() and int(name) >= tasks]
    for name in unknown:
        _rename_aside(folder, name)
    if SILENT_NAME in names:
        silent = folder / SILENT_NAME
        lines = silent.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.strip().isdigit() and int(line) < tasks]
        if kept != lines:
            found = silent.stat()
            owner = (found.st_uid, found.st_gid)
            write_atomic(silent, b"".join(kept), 0o600, owner=owner)
    if unknown:
        sync_directory(folder)


def _rename_aside(folder: Path, name: str) -> None:
    number = 1
    while (folder / f"{name}.{REPLACED}-{number}").exists():
        number += 1
    os.rename(folder / name, folder / f"{name}.{REPLACED}-{number}")


def _entries(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def _swap(path: Path, made: Path, between: Callable[[], None]) -> Path | None:
    """Rename the old journal and put `made` in its place. Returns the new name of the old one, None
    if there was none.

    From the first rename to the last one the folder has a file of the name `restoring-N`, so that
    the next restore can undo what a kill in between left. `between` runs in between, while no
    coordinator can start. Raises OSError.
    """
    number = _free_number(path)
    restoring = Path(f"{path}.{RESTORING}-{number}")
    os.rename(made, restoring)
    sync_directory(path.parent)
    for file, old in _files(path, number):
        with contextlib.suppress(FileNotFoundError):
            os.rename(file, old)
    sync_directory(path.parent)
    between()
    os.rename(restoring, path)
    replaced = _replaced(path, number)
    return replaced if any(old.exists() for _, old in _files(path, number)) else None


def _free_number(path: Path) -> int:
    """Return the number of the next journal that is replaced, from 1."""
    number = 1
    while any(old.exists() for _, old in _files(path, number)):
        number += 1
    return number


def _undo(path: Path) -> None:
    """Undo a restore that ended between its renames. Raises FileError and JournalError."""
    restoring = half_restored(path)
    if restoring is None:
        return
    try:
        for file, old in _files(path, int(restoring.name.rpartition("-")[2])):
            if not old.exists():
                continue
            if file.exists():
                raise FileError(
                    f"{old} is to be put back after a restore that was interrupted, and {file} "
                    f"has been made since: move {file} away and run it again"
                )
            os.rename(old, file)
        sync_directory(path.parent)
        restoring.unlink()
        sync_directory(path.parent)
    except (OSError, ValueError) as error:
        raise FileError(
            f"the restore that left {restoring} cannot be undone ({error}); see that {path.parent} "
            "may be written"
        ) from error


def _files(path: Path, number: int) -> Iterator[tuple[Path, Path]]:
    """The files of a journal, each with its name once the journal is replaced."""
    replaced = _replaced(path, number)
    for part in _PARTS:
        yield Path(f"{path}{part}"), Path(f"{replaced}{part}")
    yield path.with_name(OPEN_NAME), Path(f"{replaced}-open")
    yield path.with_name(CLOSED_NAME), Path(f"{replaced}-closed")


def _replaced(path: Path, number: int) -> Path:
    return Path(f"{path}.{REPLACED}-{number}")


def _existing(state_dir: Path, logs: Path | None) -> sqlite3.Connection:
    path = state_dir / FILE_NAME
    # Check first: a reader creates a missing WAL, which would hide the loss from the next start.
    refuse_loss(path, logs, at_rest=False)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal in this state folder")
    with contextlib.ExitStack() as held:
        if _hold(state_dir, held):
            refuse_loss(path, logs)
    return read_only(path)


def _in_place(path: Path) -> sqlite3.Connection:
    """Open the journal of a locked directory without creating a log."""
    return read_only(path) if Path(f"{path}-wal").exists() else frozen(path)
