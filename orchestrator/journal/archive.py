"""Archive of ended jobs: one row per job, and its facts. A restart does not read it.

Queries use connections of their own, beside the writer's.
"""

import sqlite3
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from orchestrator.journal.errors import CorruptJournalError
from orchestrator.journal.records import COLUMNS, Recorded, from_row

# A list query visits this many jobs per requested state, or up to the second number if it must.
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
    """An ended job: the columns that lists filter by, its idempotency key with the digest of the
    request (both may be empty), and `summary`, its line in lists, as JSON.
    """

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
class ArchiveQuery:
    """Query for jobs below the number `before`, newest first, that match every filter that is not
    None. `limit` is 1 or more.
    """

    before: int
    limit: int
    states: Collection[str] | None = None
    users: Collection[str] | None = None
    name: str | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query. `jobs` has every match numbered `floor` or above, up to the limit. If
    `floor` is 0, there are none below.
    """

    jobs: list[Archived]
    floor: int


def move(database: sqlite3.Connection, jobs: Sequence[Archived]) -> int:
    """Within a transaction, move jobs and their facts into the archive. Returns the number of
    facts.
    """
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
    """Within a transaction, delete jobs and their facts from the archive. Returns how many jobs of
    each state were deleted. The counts of deleted jobs and facts stay.
    """
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
    """Return the greatest number of a deleted job, or 0."""
    return _meta(database, "forgotten_to")


class Ended(NamedTuple):
    """The end of an archived job. Jobs sort by it: UTC seconds, then the number."""

    at: float
    job: int


def oldest(database: sqlite3.Connection, after: Ended, limit: int) -> list[Ended]:
    """Return the jobs that ended first after a given end. The job with the highest number is left
    out, because readers of events must find the last event.
    """
    query = (
        "SELECT ended_at, job FROM archived WHERE (ended_at, job) > (?, ?)"
        " AND job < (SELECT max(job) FROM archived) ORDER BY ended_at, job LIMIT ?"
    )
    return [Ended(*row) for row in database.execute(query, (*after, limit))]


def _meta(database: sqlite3.Connection, name: str) -> int:
    row = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def tally(database: sqlite3.Connection) -> dict[str, int]:
    """Return the number of archived jobs by state."""
    return dict(database.execute("SELECT state, jobs FROM tally"))


def facts_of(database: sqlite3.Connection, job: int) -> list[Recorded]:
    """Return all facts of an archived job in order; none if it is not archived. Raises
    NewerJournalError and CorruptJournalError.
    """
    query = f"SELECT {COLUMNS} FROM history WHERE job = ? ORDER BY seq"  # noqa: S608
    return [from_row(*row) for row in database.execute(query, (job,))]


def by_key(database: sqlite3.Connection, user: str, key: str) -> tuple[int, str] | None:
    """Return the job of an idempotency key, and the digest of its request."""
    query = "SELECT job, digest FROM archived WHERE key = ? AND user = ? AND key <> ''"
    found: tuple[int, str] | None = database.execute(query, (key, user)).fetchone()
    return found


def ended_at(database: sqlite3.Connection, jobs: Sequence[int]) -> dict[int, float]:
    """Return the end times (UTC seconds) of those jobs that are archived."""
    found: dict[int, float] = {}
    for first in range(0, len(jobs), _NAMES_MAX):
        some = jobs[first : first + _NAMES_MAX]
        places = ", ".join("?" * len(some))
        query = f"SELECT job, ended_at FROM archived WHERE job IN ({places})"  # noqa: S608
        found.update(database.execute(query, some))
    return found


def owners(database: sqlite3.Connection, jobs: Sequence[int]) -> dict[int, str]:
    """Return the users of those jobs that are archived."""
    found: dict[int, str] = {}
    for first in range(0, len(jobs), _NAMES_MAX):
        some = jobs[first : first + _NAMES_MAX]
        places = ", ".join("?" * len(some))
        query = f"SELECT job, user FROM archived WHERE job IN ({places})"  # noqa: S608
        found.update(database.execute(query, some))
    return found


def search(database: sqlite3.Connection, asked: ArchiveQuery) -> QueryResult:
    """Return as many matches as can be found with a bounded number of visited rows."""
    columns = (("name", asked.name), ("pool", asked.pool))
    equal = {column: value for column, value in columns if value is not None}
    # Each user and state has its own ordered range of an index.
    found = [
        _search(database, asked, equal | user | state)
        for user in _each("user", asked.users)
        for state in _each("state", asked.states)
    ]
    return _merged(found, asked.limit)


def _each(column: str, values: Collection[str] | None) -> list[dict[str, str]]:
    return [{}] if values is None else [{column: value} for value in values]


def _search(
    database: sqlite3.Connection, asked: ArchiveQuery, equal: dict[str, str]
) -> QueryResult:
    look = _plain if len(equal) <= 1 else _sifted
    return look(database, asked, equal)


def _plain(database: sqlite3.Connection, asked: ArchiveQuery, equal: dict[str, str]) -> QueryResult:
    """Return the matches in one range of one index."""
    where = "".join(f" AND {column} = :{column}" for column in equal)
    index = "".join(f" INDEXED BY archived_{column}" for column in equal)
    query = (
        f"SELECT {_ROW}, crc FROM archived{index} WHERE job < :before{where} "  # noqa: S608
        "ORDER BY job DESC LIMIT :limit"
    )
    given = {"before": asked.before, "limit": asked.limit, **equal}
    jobs = [_checked(row) for row in database.execute(query, given)]
    return QueryResult(jobs, jobs[-1].job if len(jobs) == asked.limit else 0)


def _sifted(
    database: sqlite3.Connection, asked: ArchiveQuery, equal: dict[str, str]
) -> QueryResult:
    """Scan the index that reaches furthest down for a given number of visited jobs."""
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
    return QueryResult(list(_rows(database, numbers)), floor)


def _depth(
    database: sqlite3.Connection, before: int, column: str, value: str, looked_at: int
) -> tuple[int, str]:
    """Return the number of the last job that a scan for `value` would visit; 0 if it visits all."""
    query = (
        f"SELECT job FROM archived INDEXED BY archived_{column} "  # noqa: S608
        f"WHERE {column} = ? AND job < ? ORDER BY job DESC LIMIT 1 OFFSET ?"
    )
    row = database.execute(query, (value, before, looked_at)).fetchone()
    return 0 if row is None else int(row[0]), column


def _merged(found: list[QueryResult], limit: int) -> QueryResult:
    floor = max((one.floor for one in found), default=0)
    jobs = [job for one in found for job in one.jobs if job.job >= floor]
    jobs.sort(key=lambda job: -job.job)
    if len(jobs) >= limit:
        del jobs[limit:]
        floor = jobs[-1].job
    return QueryResult(jobs, floor)


def _rows(database: sqlite3.Connection, numbers: list[int]) -> Iterator[Archived]:
    query = f"SELECT {_ROW}, crc FROM archived WHERE job = ?"  # noqa: S608
    for number in numbers:
        row = database.execute(query, (number,)).fetchone()
        if row is not None:
            yield _checked(row)


def check_archive(database: sqlite3.Connection, path: Path) -> int:
    """Verify the checksum of every row. Returns the number of jobs. Raises NewerJournalError,
    CorruptJournalError and sqlite3.Error.
    """
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
    """Checksum of all columns; -1, which no row has, if the last column is not bytes."""
    if not isinstance(summary, bytes):
        return -1
    columns = f"{job}\0{user}\0{name}\0{pool}\0{state}\0{ended_at!r}\0{key}\0{digest}"
    return zlib.crc32(summary, zlib.crc32(columns.encode(errors="surrogatepass")))
