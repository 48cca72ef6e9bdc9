"""The archive: a row for each job that has ended, and its facts, out of the way of a restart.

What is asked of it is read on connections of their own, beside the writer.
"""

import sqlite3
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from orchestrator.journal.errors import CorruptJournalError
from orchestrator.journal.records import COLUMNS, Recorded, from_row

# For each of the states that are asked for, a list looks at so many jobs, or at more where it must.
_LOOKED_AT: Final = (1_000, 10_000)
_ROW: Final = "job, user, name, pool, state, ended_at, key, digest, summary"
_NAMES_MAX: Final = 500  # in one statement

_INSERT: Final = f"INSERT INTO archived ({_ROW}, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_TALLY: Final = """
INSERT INTO tally VALUES (?, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1
"""
_MOVED: Final = "UPDATE meta SET value = value + ? WHERE name = 'moved'"
_NEXT_JOB: Final = """
INSERT INTO meta VALUES ('first_job', :next)
ON CONFLICT (name) DO UPDATE SET value = max(value, :next)
"""
_FORGOTTEN_FACTS: Final = """
INSERT INTO meta VALUES ('forgotten_facts', :facts)
ON CONFLICT (name) DO UPDATE SET value = value + :facts
"""
_FORGOTTEN_TO: Final = """
INSERT INTO meta VALUES ('forgotten_to', :job)
ON CONFLICT (name) DO UPDATE SET value = max(value, :job)
"""


class Archived(NamedTuple):
    """A job that has ended: what lists ask for, its idempotency key with the digest of what came
    with it (empty where there was none), and `summary`, the line of it that lists show, as JSON."""

    job: int
    user: str
    name: str
    pool: str
    state: str
    ended_at: float
    key: str
    digest: str
    summary: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """Jobs below the number `before`, of which all that is not None is so, the newest first; at
    most `limit`, which is 1 or more."""

    before: int
    limit: int
    states: Collection[str] | None = None
    user: str | None = None
    name: str | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """`jobs`: all from the number `floor` on, but for those above the limit; 0: there is nothing
    below."""

    jobs: list[Archived]
    floor: int


def move(database: sqlite3.Connection, jobs: Sequence[Archived]) -> int:
    """Within a transaction: put jobs into the archive, with the facts they have; returns how many
    facts those were."""
    moved = 0
    for row in jobs:
        database.execute(_INSERT, (*row, _crc(*row)))
        database.execute(_TALLY, (row.state,))
        given = (row.job,)
        database.execute("INSERT INTO history SELECT * FROM fact WHERE job = ?", given)
        moved += database.execute("DELETE FROM fact WHERE job = ?", given).rowcount
    if jobs:
        database.execute(_MOVED, (moved,))
        database.execute(_NEXT_JOB, {"next": 1 + max(row.job for row in jobs)})
    return moved


def drop(database: sqlite3.Connection, seqs: Sequence[int]) -> None:
    """Within a transaction: remove facts that later ones replace. They count as moved."""
    database.executemany("DELETE FROM fact WHERE seq = ?", [(seq,) for seq in seqs])
    database.execute(_MOVED, (len(seqs),))


def forget(database: sqlite3.Connection, jobs: Sequence[int]) -> dict[str, int]:
    """Within a transaction: take jobs out of the archive, with their facts; how many of each state
    those were. That there were such jobs, and how many facts, is known for ever."""
    states: dict[str, int] = {}
    facts = 0
    for job in jobs:
        row = database.execute("SELECT state FROM archived WHERE job = ?", (job,)).fetchone()
        if row is None:
            continue
        database.execute("DELETE FROM archived WHERE job = ?", (job,))
        database.execute("UPDATE tally SET jobs = jobs - 1 WHERE state = ?", row)
        facts += database.execute("DELETE FROM history WHERE job = ?", (job,)).rowcount
        states[row[0]] = states.get(row[0], 0) + 1
    if states:
        database.execute(_FORGOTTEN_FACTS, {"facts": facts})
        database.execute(_FORGOTTEN_TO, {"job": max(jobs)})
    return states


def forgotten_to(database: sqlite3.Connection) -> int:
    """The greatest number of a job that was forgotten; 0: none was."""
    return _meta(database, "forgotten_to")


def oldest(database: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, float]]:
    """The first jobs after a number, and when each ended (UTC seconds); never the newest of all:
    whoever reads events is to find the last one."""
    query = (
        "SELECT job, ended_at FROM archived WHERE job > ? AND job < (SELECT max(job) FROM archived)"
        " ORDER BY job LIMIT ?"
    )
    return database.execute(query, (after, limit)).fetchall()


def _meta(database: sqlite3.Connection, name: str) -> int:
    row = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def tally(database: sqlite3.Connection) -> dict[str, int]:
    """How many jobs of each state are in the archive."""
    return dict(database.execute("SELECT state, jobs FROM tally"))


def facts_of(database: sqlite3.Connection, job: int) -> list[Recorded]:
    """All facts of a job in the archive, in order; none where it is not there. Raises
    NewerJournalError and CorruptJournalError."""
    query = f"SELECT {COLUMNS} FROM history WHERE job = ? ORDER BY seq"  # noqa: S608
    return [from_row(*row) for row in database.execute(query, (job,))]


def by_key(database: sqlite3.Connection, user: str, key: str) -> tuple[int, str] | None:
    """The job of an idempotency key, and the digest of what came with it."""
    query = "SELECT job, digest FROM archived WHERE key = ? AND user = ? AND key <> ''"
    found: tuple[int, str] | None = database.execute(query, (key, user)).fetchone()
    return found


def ended_at(database: sqlite3.Connection, jobs: Sequence[int]) -> dict[int, float]:
    """When those of them that are in the archive ended (UTC seconds)."""
    found: dict[int, float] = {}
    for first in range(0, len(jobs), _NAMES_MAX):
        some = jobs[first : first + _NAMES_MAX]
        places = ", ".join("?" * len(some))
        query = f"SELECT job, ended_at FROM archived WHERE job IN ({places})"  # noqa: S608
        found.update(database.execute(query, some))
    return found


def search(database: sqlite3.Connection, asked: Asked) -> Found:
    """As many of the jobs that are asked for as can be found without looking at very many."""
    columns = (("name", asked.name), ("user", asked.user), ("pool", asked.pool))
    equal = {column: value for column, value in columns if value is not None}
    if asked.states is None:
        return _search(database, asked, equal)
    # Each state has its own stretch of an index, in order.
    found = [_search(database, asked, {**equal, "state": state}) for state in asked.states]
    return _merged(found, asked.limit)


def _search(database: sqlite3.Connection, asked: Asked, equal: dict[str, str]) -> Found:
    look = _plain if len(equal) <= 1 else _sifted
    return look(database, asked, equal)


def _plain(database: sqlite3.Connection, asked: Asked, equal: dict[str, str]) -> Found:
    """What one index has in one stretch."""
    where = "".join(f" AND {column} = :{column}" for column in equal)
    index = "".join(f" INDEXED BY archived_{column}" for column in equal)
    query = (
        f"SELECT {_ROW}, crc FROM archived{index} WHERE job < :before{where} "  # noqa: S608
        "ORDER BY job DESC LIMIT :limit"
    )
    given = {"before": asked.before, "limit": asked.limit, **equal}
    jobs = [_checked(row) for row in database.execute(query, given)]
    return Found(jobs, jobs[-1].job if len(jobs) == asked.limit else 0)


def _sifted(database: sqlite3.Connection, asked: Asked, equal: dict[str, str]) -> Found:
    """Look along the index that gets furthest down with so many jobs looked at."""
    given: dict[str, Any] = {"before": asked.before, "limit": asked.limit, **equal}
    where = "".join(f" AND {column} = :{column}" for column in equal)
    numbers: list[int] = []
    floor = 0
    for looked_at in _LOOKED_AT:
        floor, column = min(
            _depth(database, asked.before, *one, looked_at) for one in equal.items()
        )
        query = (
            f"SELECT job FROM archived INDEXED BY archived_{column} "  # noqa: S608
            f"WHERE job < :before AND job >= :floor{where} ORDER BY job DESC LIMIT :limit"
        )
        numbers = [number for (number,) in database.execute(query, {**given, "floor": floor})]
        if len(numbers) == asked.limit:
            floor = numbers[-1]
        if floor == 0 or len(numbers) == asked.limit:
            break
    return Found(list(_rows(database, numbers)), floor)


def _depth(
    database: sqlite3.Connection, before: int, column: str, value: str, looked_at: int
) -> tuple[int, str]:
    """Down to which job so many that have `value` reach; 0 where there are fewer."""
    query = (
        f"SELECT job FROM archived INDEXED BY archived_{column} "  # noqa: S608
        f"WHERE {column} = ? AND job < ? ORDER BY job DESC LIMIT 1 OFFSET ?"
    )
    row = database.execute(query, (value, before, looked_at)).fetchone()
    return 0 if row is None else int(row[0]), column


def _merged(found: list[Found], limit: int) -> Found:
    floor = max((one.floor for one in found), default=0)
    jobs = [job for one in found for job in one.jobs if job.job >= floor]
    jobs.sort(key=lambda job: -job.job)
    if len(jobs) >= limit:
        del jobs[limit:]
        floor = jobs[-1].job
    return Found(jobs, floor)


def _rows(database: sqlite3.Connection, numbers: list[int]) -> Iterator[Archived]:
    query = f"SELECT {_ROW}, crc FROM archived WHERE job = ?"  # noqa: S608
    for number in numbers:
        row = database.execute(query, (number,)).fetchone()
        if row is not None:
            yield _checked(row)


def check_archive(database: sqlite3.Connection, path: Path) -> int:
    """Look at all of it, every checksum; returns how many jobs are there. Raises
    NewerJournalError, CorruptJournalError and sqlite3.Error."""
    jobs = 0
    for row in database.execute(f"SELECT {_ROW}, crc FROM archived"):  # noqa: S608
        _checked(row)
        jobs += 1
    counted = sum(tally(database).values())
    if jobs != counted:
        raise CorruptJournalError(f"{path}: the archive has {jobs} jobs, and {counted} went there")
    facts = 0
    for row in database.execute(f"SELECT {COLUMNS} FROM history"):  # noqa: S608
        from_row(*row)
        facts += 1
    left = _meta(database, "moved") - _meta(database, "forgotten_facts")
    if facts != left:
        raise CorruptJournalError(f"{path}: the archive has {facts} records, and {left} went there")
    return jobs


def _checked(row: tuple[Any, ...]) -> Archived:
    *values, crc = row
    if crc != _crc(*values):
        raise CorruptJournalError(
            f"job {row[0]} in the archive of the journal is not as it was written (its checksum "
            "differs)"
        )
    return Archived(*values)


def _crc(
    job: Any, user: Any, name: Any, pool: Any, state: Any, ended_at: Any, key: Any, digest: Any,
    summary: Any,
) -> int:  # fmt: skip
    """Of all columns; -1, which no row has, where the last of them is not even bytes."""
    if not isinstance(summary, bytes):
        return -1
    columns = f"{job}\0{user}\0{name}\0{pool}\0{state}\0{ended_at!r}\0{key}\0{digest}"
    return zlib.crc32(summary, zlib.crc32(columns.encode(errors="surrogatepass")))
