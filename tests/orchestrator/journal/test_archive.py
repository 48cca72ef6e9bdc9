"""Jobs in the archive: moved whole or not at all, found by all that lists ask, and never lost."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.protocol.ids import JobId, NodeName
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.journal import archive, schema
from orchestrator.journal.archive import Archived, ArchiveQuery, QueryResult
from orchestrator.journal.backup import back_up, examined, examined_copy, restore
from orchestrator.journal.errors import CorruptJournalError, JournalWriteError
from orchestrator.journal.journal import Journal, events
from orchestrator.journal.reader_pool import read_only
from orchestrator.journal.schema import FILE_NAME, LAYOUT
from orchestrator.shell.replay import replay
from tests.orchestrator.journal.next_layout import upgrade_to_next
from tests.orchestrator.journal.test_disk_reserve import Faulty

SPEC = JobSpec(name="demo", run=Shell("true"))
CANCELLED = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by ann")
ROW = Archived(1, "ann", "demo", "default", "CANCELLED", 2.0, "", "", b"{}")
RESERVE = 1 << 20


def facts(*jobs: int) -> list[tuple[f.Fact, float]]:
    """Return the submit of each job; then the ends of all of them."""
    return [
        *((f.JobSubmitted(JobId(n), SPEC, "ann", f"key-{n}", "digest"), 1.0) for n in jobs),
        *((f.JobEnded(JobId(n), CANCELLED), 2.0) for n in jobs),
    ]


def rows(*jobs: int) -> list[Archived]:
    return [ROW._replace(job=n, key=f"key-{n}", digest="digest") for n in jobs]


def seqs(folder: Path, job: int | None = None, after: int = 0, limit: int = 1000) -> list[int]:
    with closing(read_only(folder / FILE_NAME)) as database:
        found = events(database, job=job, after_seq=after, limit=limit, bytes_max=1 << 20)
    return [recorded.seq for recorded in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal with jobs 1 to 4, all ended; 1 and 3 are in the archive. Its facts are 1 to 9."""
    journal = Journal.open(tmp_path)
    journal.append([(cf.EpochStarted(1), 0.0), *facts(1, 2, 3, 4)])
    assert journal.archive(rows(1, 3))
    journal.close()
    return tmp_path


def look(folder: Path, what: Callable[[sqlite3.Connection], Any]) -> Any:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        return what(database)


def test_a_start_reads_what_lives_and_events_are_all_there(folder: Path) -> None:
    journal = Journal.open(folder)
    assert [r.seq for r in journal.replay()] == [1, 3, 5, 7, 9]
    assert sorted(replay(journal.replay()).jobs) == [2, 4]
    assert journal.first_job == 4, "no number comes twice"
    assert journal.tally() == {"CANCELLED": 2}
    assert list(journal.append(facts(5))) == [10, 11]
    assert seqs(folder) == list(range(1, 12))
    assert seqs(folder, after=3, limit=4) == [4, 5, 6, 7]
    assert [seqs(folder, job=n) for n in (1, 2, 3, 5)] == [[2, 6], [3, 7], [4, 8], [10, 11]]
    assert seqs(folder, job=3, after=4) == [8]
    journal.close()
    assert look(folder, lambda db: archive.by_key(db, "ann", "key-3")) == (3, "digest")
    assert look(folder, lambda db: archive.by_key(db, "ann", "key-2")) is None
    assert look(folder, lambda db: archive.by_key(db, "bob", "key-3")) is None
    assert look(folder, lambda db: archive.by_key(db, "ann", "")) is None
    assert [r.seq for r in look(folder, lambda db: archive.facts_of(db, 3))] == [4, 8]
    assert look(folder, lambda db: archive.ended_at(db, [1, 2, 3, *range(9, 2000)])) == {
        1: 2.0,
        3: 2.0,
    }


def test_numbers_of_facts_go_on_when_all_are_in_the_archive(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append(facts(1))
    journal.archive(rows(1))
    journal.close()
    journal = Journal.open(tmp_path)
    assert list(journal.replay()) == []
    assert list(journal.append(facts(2))) == [3, 4]
    journal.close()


class Watched:
    """A database that is copied, as a kill would leave it, before and after each commit."""

    def __init__(self, database: sqlite3.Connection, folder: Path, copies: Path) -> None:
        self._database, self._folder, self._copies = database, folder, copies

    def execute(self, text: str, *given: Any) -> sqlite3.Cursor:
        if text == "COMMIT":
            shutil.copytree(self._folder, self._copies / "before")
        done = self._database.execute(text, *given)
        if text == "COMMIT":
            shutil.copytree(self._folder, self._copies / "after")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_loses_nothing_and_doubles_nothing(tmp_path: Path, when: str) -> None:
    work = tmp_path / "work"
    journal = Journal.open(work)
    journal.begin_epoch()
    journal.append(facts(1, 2))
    journal._database = Watched(journal._database, work, tmp_path)  # type: ignore[assignment]
    journal.archive(rows(1))
    journal.close()

    left = tmp_path / when
    again = Journal.open(left)
    live = sorted(replay(again.replay()).jobs)
    assert live == ([1, 2] if when == "before" else [2])
    assert seqs(left) == [1, 2, 3, 4]
    # Ended jobs that the archive lacks are archived now.
    assert again.archive(rows(*live))
    assert seqs(left) == [1, 2, 3, 4]
    assert again.tally() == {"CANCELLED": 2}
    assert [r.seq for r in archive.facts_of(again._database, 1)] == [1, 3]
    again.close()


def test_without_room_nothing_moves_and_the_reserve_stays(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, RESERVE)
    journal.append(facts(1))
    real = journal._database
    journal._database = Faulty(real, sqlite3.SQLITE_FULL)  # type: ignore[assignment]
    assert not journal.archive(rows(1))
    assert (tmp_path / "journal.reserve").stat().st_size == RESERVE
    assert len(list(journal.replay())) == 2
    assert journal.archive(rows(1)), "there is room again"
    assert list(journal.replay()) == []
    journal._database = Faulty(real, sqlite3.SQLITE_IOERR_FSYNC)  # type: ignore[assignment]
    with pytest.raises(JournalWriteError):
        journal.archive(rows(2))
    journal.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE archived SET user = 'bob' WHERE job = 3", "job 3 .* checksum differs"),
        ("UPDATE archived SET summary = '{}' WHERE job = 3", "job 3 .* checksum differs"),
        ("DELETE FROM archived WHERE job = 3", "has 1 jobs, and 2 went there"),
        ("UPDATE history SET at = 7 WHERE seq = 4", "record 4 .* checksum differs"),
        ("DELETE FROM history WHERE seq = 4", "has 3 records, and 4 went there"),
        ("DELETE FROM fact WHERE seq = 5", "record 5 is missing"),
    ],
)
def test_a_changed_record_is_found(folder: Path, change: str, said: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        database.execute(change)
        database.commit()
    with pytest.raises(CorruptJournalError, match=said), examined(folder) as found:
        list(found)


def test_records_read_by_a_list_are_checked(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        database.execute("UPDATE archived SET name = 'another' WHERE job = 3")
        with pytest.raises(CorruptJournalError, match="job 3"):
            archive.search(database, ArchiveQuery(10, 10))


def test_a_backup_of_an_older_layout_is_read_and_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    journal = Journal.open(work)
    journal.append(facts(1, 2))
    journal.close()
    back_up(work, tmp_path / "old")
    upgrade_to_next(monkeypatch)
    with examined_copy(tmp_path / "old") as found:
        assert (len(list(found)), found.archived, found.first_job) == (4, 0, 0)
    for _ in range(2):
        journal = Journal.open(work)
        assert [r.seq for r in journal.replay()] == [1, 2, 3, 4]
        journal.close()
    with closing(sqlite3.connect(work / f"{FILE_NAME}.layout-{LAYOUT}")) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
    # A backup of the older release is put in place, and taken over at the next start.
    restore(work, tmp_path / "old", 3)
    journal = Journal.open(work)
    assert journal.archive(rows(1))
    assert [r.seq for r in journal.replay()] == [2, 4, 5]
    journal.close()


def test_a_backup_has_the_archive(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "copy")
    with examined_copy(tmp_path / "copy") as found:
        assert sorted(replay(found).jobs) == [2, 4]
        assert (found.archived, found.first_job) == (2, 4)
    restore(folder, tmp_path / "copy", 5)
    journal = Journal.open(folder)
    assert journal.tally() == {"CANCELLED": 2}
    assert journal.first_job > 1000
    journal.archive(rows(2))
    assert journal.first_job > 1000, "a move takes no number back"
    journal.close()
    assert seqs(folder) == list(range(1, 11)), "the last one says that it was restored"


USERS, NAMES, POOLS = ("u", "v"), ("a", "b", "c"), ("p", "q")
STATES = ("SUCCEEDED", "FAILED", "LOST")


def one_of(*values: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from((None, "nothing", *values))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    jobs=st.lists(
        st.tuples(*map(st.sampled_from, (USERS, NAMES, POOLS, STATES)), st.booleans()), max_size=60
    ),
    states=st.one_of(st.none(), st.sets(st.sampled_from(STATES), min_size=1)),
    users=st.one_of(st.none(), st.sets(st.sampled_from((*USERS, "nobody")))),
    name=one_of(*NAMES),
    pool=one_of(*POOLS),
    limit=st.integers(1, 9),
    looked_at=st.integers(1, 12),
)
def test_page_after_page_has_each_job_once(
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[tuple[str, str, str, str, bool]],
    states: set[str] | None,
    users: set[str] | None,
    name: str | None,
    pool: str | None,
    limit: int,
    looked_at: int,
) -> None:
    monkeypatch.setattr(archive, "_LOOKED_AT", (looked_at, 2 * looked_at))
    there = [
        ROW._replace(job=number, user=u, name=n, pool=p, state=s)
        for number, (u, n, p, s, here) in enumerate(jobs, 1)
        if here
    ]
    wanted = [
        row.job
        for row in reversed(there)
        if (states is None or row.state in states)
        and (users is None or row.user in users)
        and name in (None, row.name)
        and pool in (None, row.pool)
    ]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(schema._MAKE)
        archive.move(database, there)
        found: list[int] = []
        before = 10**6
        for _ in range(200):
            page: QueryResult = archive.search(
                database, ArchiveQuery(before, limit, states, users, name, pool)
            )
            assert len(page.jobs) <= limit
            assert all(page.floor <= row.job < before for row in page.jobs)
            found += [row.job for row in page.jobs]
            if not page.floor:
                break
            assert page.floor < before, "it gets on"
            before = page.floor
    assert found == wanted


def test_a_list_reads_its_indexes_and_no_other_page(folder: Path) -> None:
    """A row that is left out is never looked up in the table."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        seen: list[str] = []
        database.set_trace_callback(seen.append)
        archive.search(
            database,
            ArchiveQuery(
                99, 9, {"LOST", "FAILED"}, users={"ann", "bob"}, name="demo", pool="default"
            ),
        )
        database.set_trace_callback(None)
        plans = [str(database.execute(f"EXPLAIN QUERY PLAN {text}").fetchall()) for text in seen]
    assert len(plans) > 1
    assert all("COVERING INDEX" in plan for plan in plans), plans


def test_a_gang_of_nodes_may_have_facts_of_other_jobs_between_its_own(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    placed = f.AttemptPlaced(JobId(1), 1, (NodeName("n1"),))
    first, second = facts(1), facts(2)
    journal.append([first[0], second[0], (placed, 1.5), *second[1:], *first[1:]])
    journal.archive(rows(1, 2))
    journal.close()
    assert [type(r.fact) for r in look(tmp_path, lambda db: archive.facts_of(db, 1))] == [
        f.JobSubmitted,
        f.AttemptPlaced,
        f.JobEnded,
    ]
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]
