"""Parts of the history that a backup lacks, by the replaced journal and the logs; the record of a
restore.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from muster.protocol.ids import JobId, NodeName
from orchestrator.core.facts.restored import JournalRestored
from orchestrator.journal.errors import JournalError
from orchestrator.journal.journal import last_seq
from orchestrator.journal.records import COLUMNS, to_row
from orchestrator.journal.schema import check

# Epochs, jobs and attempts that the backup does not know may have existed: skip these numbers.
EPOCHS_LEFT_OUT: Final = 1_000_000
JOBS_LEFT_OUT: Final = 1000
ATTEMPTS_LEFT_OUT: Final = 1000
_ATTEMPTS_OF_RESTORE: Final = 10_000

_OF_NODES: Final = "SELECT body FROM fact WHERE kind = 'NodeRegistered'"
_OF_RESTORES: Final = "SELECT body FROM fact WHERE kind = 'JournalRestored'"
_OF_ATTEMPTS: Final = """
SELECT body FROM fact WHERE job = :job AND kind = 'AttemptPlaced'
UNION ALL SELECT body FROM history WHERE job = :job AND kind = 'AttemptPlaced'
"""


class Later(NamedTuple):
    """`nodes` that the replaced journal knew, and the last attempt of each job that has not ended
    by the backup and has been placed since.

    If that journal was itself restored, its record has what the journal before it knew.
    """

    nodes: tuple[NodeName, ...]
    attempts: dict[JobId, int]


def first_attempt(number: int) -> int:
    """Return the first number for attempts after the restore of that number in a state directory.

    Restores of different backups have ranges of their own, even if nothing is known of the attempts
    that were made between them.
    """
    return 0 if number == 1 else number * _ATTEMPTS_OF_RESTORE


def later_than(
    attempts: Mapping[JobId, int], path: Path, connect: Callable[[], sqlite3.Connection], logs: Path
) -> Later:
    """Return what is known of the time since a backup with these last attempts.

    The journal at `path`, which `connect` opens, may be unreadable or missing. Raises OSError if
    the logs cannot be read.
    """
    nodes: set[NodeName] = set()
    last = dict(attempts)
    unreadable = (sqlite3.Error, msgspec.MsgspecError, JournalError, OSError, ValueError, KeyError)
    with contextlib.suppress(*unreadable), contextlib.closing(connect()) as database:
        check(database, path)
        for (body,) in database.execute(_OF_NODES):
            nodes.add(NodeName(str(msgspec.json.decode(body)["node"])))
        for job in attempts:
            for (body,) in database.execute(_OF_ATTEMPTS, {"job": job}):
                last[job] = max(last[job], int(msgspec.json.decode(body)["attempt"]))
        for (body,) in database.execute(_OF_RESTORES):
            earlier = msgspec.json.decode(body, type=JournalRestored)
            nodes.update(earlier.nodes)
            for job, attempt in earlier.attempts:
                if job in last:
                    last[job] = max(last[job], attempt)
    for job in attempts:
        folder = logs / str(job)
        # Logs that an earlier restore has set aside are named `1.replaced-1`.
        names = [name.partition(".")[0] for name in os.listdir(folder)] if folder.is_dir() else []
        last[job] = max([last[job], *(int(name) for name in names if name.isdecimal())])
    since = {job: last[job] for job in attempts if last[job] > attempts[job]}
    return Later(tuple(sorted(nodes)), since)


def leave_out(
    database: sqlite3.Connection,
    last_epoch: int | None,
    last_job: int,
    restored: JournalRestored,
    at: float,
) -> None:
    """Turn the copy of a backup into a journal: later numbers are left out, and its last record, of
    the time `at` (UTC seconds), says that it was restored. `last_epoch` is None if unknown.
    """
    (epoch,) = database.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
    epoch = epoch + EPOCHS_LEFT_OUT if last_epoch is None else max(epoch, last_epoch)
    first_job = last_job + 1 + JOBS_LEFT_OUT
    row = to_row(last_seq(database) + 1, restored, at)
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (epoch,))
    database.execute("INSERT OR REPLACE INTO meta VALUES ('first_job', ?)", (first_job,))
    database.execute("DELETE FROM meta WHERE name = 'database'")
    # With the names of the columns, because a backup may have an older layout.
    database.execute(f"INSERT INTO fact ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
    database.execute("COMMIT")
