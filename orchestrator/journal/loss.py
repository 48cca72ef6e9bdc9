"""Check that the files in a state directory are complete and belong together, before SQLite opens.

SQLite accepts whatever it finds. It replaces a lost database with an empty one and removes the log
beside it, plays any log into any database, and stops at the first damaged frame of a log.
docs/decisions/0052-what-a-state-folder-must-have.md has the cases.
"""

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.protocol.ids import is_job_id
from orchestrator.journal import mark
from orchestrator.journal.disk_reserve import FILE_NAME as RESERVE
from orchestrator.journal.errors import (
    CorruptJournalError,
    HalfRestoredError,
    JournalError,
    LostLogError,
    LostTailError,
)
from orchestrator.journal.mark import Marked, Note, closed_note
from orchestrator.journal.reader_pool import frozen, read_only
from orchestrator.journal.wal import WriteAheadLog, examine_log

# Left by a restore that was killed.
RESTORED: Final = "restored"
SALVAGED: Final = "salvaged"
# A restore names the new journal RESTORING and a number until it is in place, and the previous one
# REPLACED and the same number.
RESTORING: Final = "restoring"
REPLACED: Final = "replaced"
# Each checkpoint restarts the log and increments its salt.
_SALTS_AHEAD: Final = 1 << 16
# Jobs that went to the archive are below `first_job`.
LAST_JOB: Final = """
SELECT max(
    coalesce((SELECT max(job) FROM fact), 0),
    coalesce((SELECT value - 1 FROM meta WHERE name = 'first_job'), 0)
)
"""
_DATABASE_NAME: Final = "SELECT value FROM meta WHERE name = 'database'"


@dataclass(frozen=True, slots=True)
class _View:
    """Identity of a database. `seq` is its last record, `job` its last job; `blank` means that it
    has no tables."""

    name: str = ""
    epoch: int = 0
    seq: int = 0
    job: int = 0
    blank: bool = False


def refuse_loss(path: Path, logs: Path | None = None, *, at_rest: bool = True) -> str:
    """Refuse to start with an empty or shorter journal than there was. Returns a sentence if the
    last transaction was cut off, else "". Raises JournalError.

    `at_rest` means that no other process has the journal at `path` open, so that its log can be
    read. `logs` is as in `last_with_logs`.
    """
    half = half_restored(path)
    if half is not None:
        raise HalfRestoredError(
            f"a restore of {path} was interrupted and left {half}; the next restore first puts "
            "the old journal back, then does its own work"
        )
    log = path.with_name(f"{path.name}-wal")
    marked = Marked.read(path)
    if size(path) == 0:
        _refuse_traces(path, logs, [log, path.with_name(f"{path.name}-shm")])
        return ""
    if marked is not None and (
        not log.exists() or (at_rest and marked.note is not None and size(log) == 0)
    ):
        raise LostLogError(
            f"{log} is {'empty' if log.exists() else 'missing'}: what was written last before the "
            "coordinator ended was in it; put it back if it was moved; if another program opened "
            f"the journal since (sqlite3, say), it merged the log and nothing is lost: remove "
            f"{path.with_name(mark.FILE_NAME)} and see that `muster coordinator --check` counts "
            "all earlier jobs"
        )
    if not at_rest:
        return ""
    found = _examined(log)
    if found.damaged:
        behind = f", and {found.ends} transactions end behind that" if found.ends else ""
        raise LostTailError(f"{log} is damaged at frame {found.bad}{behind}")
    _refuse_stranger(path, log, marked, found, logs)
    if found.bad is None:
        return ""
    return (
        f"the last transaction in {log} (from frame {found.bad} on) is incomplete and was left "
        "out: a power failure during a commit leaves such a transaction, which was never "
        "acknowledged"
    )


def last_with_logs(path: Path, logs: Path | None) -> int:
    """Return the greatest number of a job with output in `logs` (None: `logs` beside the journal at
    `path`), or 0. Every placed job has output, unless it wrote nothing. Raises JournalError.
    """
    folder = logs or path.parent / "logs"
    return max((int(name) for name in _names(folder) if is_job_id(name)), default=0)


def half_restored(path: Path) -> Path | None:
    """The file that an interrupted restore was about to rename to `path`. Returns None if there
    was none. Raises JournalError."""
    start = f"{path.name}.{RESTORING}-"
    found = (name for name in _names(path.parent) if name.startswith(start))
    return next((path.with_name(name) for name in found), None)


def remove_leftovers(state_dir: Path, journal: str) -> None:
    """Remove the files that a killed restore left, because they use space. Raises OSError."""
    for what in (RESTORED, SALVAGED):
        for part in ("", "-journal"):
            (state_dir / f".{journal}.{what}{part}").unlink(missing_ok=True)


def size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist. Raises JournalError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise JournalError(
            f"{path} cannot be examined ({error.strerror}); give state_dir to the user of this "
            "daemon"
        ) from error


def database_name(path: Path) -> str:
    """Return the name stored in the database file without its log; "" if it has none yet."""
    view = _view(frozen(path))
    return "" if view is None else view.name


def _refuse_traces(path: Path, logs: Path | None, more: list[Path]) -> None:
    """Raise if there is no database but something shows that there was one."""
    marks = (path.with_name(mark.FILE_NAME), path.with_name(mark.CLOSED_NAME))
    had = [one for one in (*marks, *more) if one.exists()]
    kept = (f"{path.name}.{REPLACED}-", f"{path.name}.layout-", f".{path.name}.{RESTORED}")
    names = sorted(_names(path.parent))
    had += [path.with_name(name) for name in names if name.startswith(kept) or name == RESERVE]
    if not had and last_with_logs(path, logs):
        had = [logs or path.parent / "logs"]
    if had:
        raise CorruptJournalError(
            f"{path} is missing or empty, and {had[0]} is of a coordinator that has had a journal "
            "here; put the journal back if it was moved"
        )


def _examined(log: Path) -> WriteAheadLog:
    try:
        with log.open("rb") as file:
            return examine_log(file)
    except FileNotFoundError:
        return WriteAheadLog()
    except OSError as error:
        raise JournalError(
            f"{log} cannot be read ({error.strerror}); check its disk, and that it "
            "belongs to the user of this daemon"
        ) from error


def _refuse_stranger(
    path: Path, log: Path, marked: Marked | None, found: WriteAheadLog, logs: Path | None
) -> None:
    """Raise unless database, log and marks belong to one journal and hold all that the marks and
    the output of jobs prove."""
    closed = closed_note(path)
    note = None if marked is None else marked.note
    alone = _view(frozen(path))
    whole = alone if found.salt is None else _view(read_only(path))
    if whole is not None and whole.blank:
        _refuse_traces(path, logs, [])
    names = [view.name for view in (alone, whole) if view is not None]
    strange: Path | None
    if _is_of_another(note, names):
        strange = path.with_name(mark.FILE_NAME)
    elif _is_of_another(closed, names):
        strange = path.with_name(mark.CLOSED_NAME)
    elif note is None:
        strange = log if len(set(names) - {""}) > 1 else None
    else:
        strange = log if _is_strange(note, found) else None
    if strange is not None:
        raise CorruptJournalError(
            f"{path} is not the database that {strange} belongs to: put the one back that was "
            "here, or, to go on with this one, move it to another folder and restore it from there"
        )
    if whole is None:
        return
    missing = None if note is None else _missing_part(whole, note)
    if missing is not None:
        raise LostTailError(f"{log} is cut off or damaged: {missing} that can be read")
    missing = None if closed is None else _missing_part(whole, closed)
    if missing is not None:
        raise LostTailError(f"{path} is an older copy: {missing}; put the newer one back")
    job = last_with_logs(path, logs)
    if whole.job < job:
        output = (logs or path.parent / "logs") / str(job)
        raise LostTailError(
            f"{path} is an older copy, or its end is lost: {output} has output of job {job}, and "
            f"{whole.job} is the last that is known; put the newer one back, or move {output} away "
            "if no job of Muster made it"
        )


def _missing_part(view: _View, note: Note) -> str | None:
    for what, said, last in (
        ("record", note.seq, view.seq),
        ("the beginning of epoch", note.epoch, view.epoch),
    ):
        if last < said:
            return f"{what} {said} was committed, and {last} is the last"
    return None


def _is_of_another(note: Note | None, names: list[str]) -> bool:
    return note is not None and note.database != "" and any(n != note.database for n in names)


def _is_strange(note: Note, found: WriteAheadLog) -> bool:
    if found.salt is None or not note.salt:
        return False
    return (found.salt - note.salt) % (1 << 32) > _SALTS_AHEAD


def _view(database: sqlite3.Connection) -> _View | None:
    """Return the identity of a database. None if it is unreadable: the checks of opening report
    why.
    """
    try:
        with contextlib.closing(database):
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                return _View(blank=True)
            row = database.execute(_DATABASE_NAME).fetchone()
            name = "" if row is None else str(row[0])
            (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            (facts,) = database.execute("SELECT count(*) FROM fact").fetchone()
            moved = database.execute("SELECT value FROM meta WHERE name = 'moved'").fetchone()
            (job,) = database.execute(LAST_JOB).fetchone()
            seq = facts + (0 if moved is None else int(moved[0]))
            return _View(name, int(epoch), seq, int(job))
    except (sqlite3.Error, UnicodeDecodeError, TypeError, ValueError):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(
            f"{folder} cannot be read ({error.strerror}); give it to the user of this daemon"
        ) from error
