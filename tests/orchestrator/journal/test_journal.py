"""The journal on disk: what goes in comes out in order, and a stranger's file is left alone."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from muster.daemon.durable_files import LOCK_NAME
from muster.daemon.errors import DirectoryLockedError
from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Inventory
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.journal.errors import (
    CorruptJournalError,
    ForeignJournalError,
    JournalError,
    JournalWriteError,
    NewerJournalError,
)
from orchestrator.journal.journal import Journal, events
from orchestrator.journal.reader_pool import read_only
from orchestrator.journal.schema import FILE_NAME, LAYOUT

TREE = Path(__file__).resolve().parents[3]
SPEC = JobSpec(name="demo", run=Shell("true"), env={"A": "ä\n"})
CANCELLED = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by ann")
HOLD = """
import sys
from pathlib import Path
from orchestrator.journal.journal import Journal
journal = Journal.open(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
FACTS: list[f.Fact] = [
    cf.EpochStarted(1),
    cf.NodeRegistered(NodeName("n1"), "a", "b", "0.1.0", Inventory("10.0.0.1", "m")),
    f.JobSubmitted(JobId(1), SPEC, "ann", "key", "digest"),
    f.JobSubmitted(JobId(2), SPEC, "bob"),
    f.AttemptPlaced(JobId(1), 1, (NodeName("n1"),)),
    f.JobEnded(JobId(2), CANCELLED),
]


def test_appended_facts_are_replayed_in_order(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    assert list(journal.append([(fact, 1.5) for fact in FACTS[:4]])) == [1, 2, 3, 4]
    assert list(journal.append([(fact, 2.5) for fact in FACTS[4:]])) == [5, 6]
    journal.close()

    again = Journal.open(tmp_path)
    found = list(again.replay())
    assert [recorded.fact for recorded in found] == FACTS
    assert [recorded.seq for recorded in found] == [1, 2, 3, 4, 5, 6]
    assert [recorded.at for recorded in found] == [1.5] * 4 + [2.5] * 2
    assert list(again.append([(FACTS[0], 3.0)])) == [7]
    again.close()


def seqs_of(
    path: Path, *, job: int | None, after: int, limit: int = 10, bytes_max: int = 1 << 20
) -> list[int]:
    with contextlib.closing(read_only(path)) as database:
        found = events(database, job=job, after_seq=after, limit=limit, bytes_max=bytes_max)
    return [recorded.seq for recorded in found]


def test_events_are_those_of_the_job_after_a_place(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append([(fact, 1.0) for fact in FACTS])
    path = tmp_path / FILE_NAME
    assert seqs_of(path, job=1, after=0) == [3, 5]
    assert seqs_of(path, job=1, after=3) == [5]
    assert seqs_of(path, job=None, after=1, limit=2) == [2, 3]
    assert seqs_of(path, job=9, after=0) == []
    journal.close()


@pytest.mark.parametrize(
    ("bytes_max", "expected"), [(1, 1), (15_000, 2), (25_000, 3), (1 << 20, 5)]
)
def test_events_end_with_the_one_that_reaches_the_bytes(
    tmp_path: Path, bytes_max: int, expected: int
) -> None:
    journal = Journal.open(tmp_path)
    large = structs.replace(SPEC, run=Shell("x" * 10_000))
    facts = [f.JobSubmitted(JobId(number), large, "ann") for number in range(1, 6)]
    journal.append([(fact, 1.0) for fact in facts])
    found = seqs_of(tmp_path / FILE_NAME, job=None, after=0, bytes_max=bytes_max)
    assert found == list(range(1, expected + 1))
    journal.close()


def test_each_start_is_an_epoch(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        journal = Journal.open(tmp_path)
        assert journal.begin_epoch() == expected
        journal.close()


def test_only_one_process_has_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TREE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLockedError, match=f"process {holder.pid}") as caught:
            Journal.open(tmp_path)
        assert caught.value.pid == holder.pid
    finally:
        holder.communicate("")
    Journal.open(tmp_path).close()


def test_a_text_file_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("dear diary, this is long enough to be looked at\n" * 50)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ForeignJournalError, match="not a journal of Muster"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("CREATE TABLE fact (x)")
    database.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ForeignJournalError, match="another program"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    database.close()
    with pytest.raises(NewerJournalError, match=f"layout {LAYOUT + 1}"):
        Journal.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ("UPDATE fact SET body = '{}' WHERE seq = 3", CorruptJournalError, "record 3"),
        ("DELETE FROM fact WHERE seq = 4", CorruptJournalError, "record 4"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    tmp_path: Path, change: str, error: type[JournalError], said: str
) -> None:
    journal = Journal.open(tmp_path)
    journal.append([(fact, 1.0) for fact in FACTS])
    journal.close()
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute(change)
    database.commit()
    database.close()
    journal = Journal.open(tmp_path)
    with pytest.raises(error, match=said):
        list(journal.replay())
    journal.close()


def test_a_damaged_page_is_found_when_it_is_opened(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for _ in range(20):
        journal.append([(fact, 1.0) for fact in FACTS * 10])
    journal.close()
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(4096))
    with pytest.raises(CorruptJournalError, match="is damaged"):
        Journal.open(tmp_path)


def test_a_failed_commit_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append([(FACTS[0], 1.0)])
    other = sqlite3.connect(tmp_path / FILE_NAME)
    # The next insert of the batch meets this row: the whole batch is undone.
    other.execute("INSERT INTO fact VALUES (3, 0, 1, 'x', NULL, '', 0)")
    other.commit()
    with pytest.raises(JournalWriteError, match="nothing was acted on"):
        journal.append([(FACTS[1], 1.0), (FACTS[2], 1.0)])
    assert other.execute("SELECT seq FROM fact ORDER BY seq").fetchall() == [(1,), (3,)]
    other.close()
    journal.close()


def test_it_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append([(FACTS[0], 1.0)])
    for name in os.listdir(tmp_path):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
    journal.close()


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    pragma = journal._database.execute
    assert pragma("PRAGMA journal_mode").fetchone() == ("wal",)
    assert pragma("PRAGMA synchronous").fetchone() == (2,), "FULL"
    journal.close()


def registration(node: str, boot: str) -> cf.NodeRegistered:
    return cf.NodeRegistered(NodeName(node), "a", boot, "0.1.0", Inventory("10.0.0.1", "m"))


def boots(journal: Journal) -> list[tuple[str, str]]:
    facts = [recorded.fact for recorded in journal.replay()]
    return [(x.node, x.boot_id) for x in facts if isinstance(x, cf.NodeRegistered)]


def test_the_first_and_the_newest_registration_of_a_node_stay(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.append([(registration("n1", "b0"), 1.0), (registration("n2", "b0"), 1.0)])
    for number in range(1, 9):
        journal.append([(registration("n1", f"b{number}"), 1.0)])
    journal.append([(registration("n1", "b9"), 1.0), (registration("n1", "b10"), 1.0)])
    assert boots(journal) == [("n1", "b0"), ("n2", "b0"), ("n1", "b10")]
    # A node that comes back after its removal has a first registration again.
    journal.append([(sf.NodeRemoved(NodeName("n1"), "ann"), 1.0)])
    for number in range(20, 24):
        journal.append([(registration("n1", f"b{number}"), 1.0)])
    kept = [("n1", "b0"), ("n2", "b0"), ("n1", "b10"), ("n1", "b20"), ("n1", "b23")]
    assert boots(journal) == kept
    journal.close()

    again = Journal.open(tmp_path)
    assert boots(again) == kept
    assert list(again.append([(registration("n1", "b24"), 1.0)])) == [18]
    again.append([(registration("n1", "b25"), 1.0)])
    again.append([(registration("n1", "b26"), 1.0)])
    assert boots(again) == [*kept, ("n1", "b24"), ("n1", "b26")]
    again.close()


def test_a_second_process_that_finds_no_lock_ends_the_first_at_its_next_commit(
    tmp_path: Path,
) -> None:
    first = Journal.open(tmp_path)
    first.begin_epoch()
    first.append([(FACTS[0], 1.0)])
    (tmp_path / LOCK_NAME).unlink()
    second = Journal.open(tmp_path)
    second.begin_epoch()
    with pytest.raises(JournalWriteError, match="another coordinator has begun epoch 2 here"):
        first.append([(FACTS[1], 2.0)])
    assert list(second.append([(FACTS[1], 3.0)])) == [2]
    with pytest.raises(JournalWriteError, match="another coordinator has begun epoch 2 here"):
        first.append([(FACTS[2], 4.0)])
    first.close()
    assert list(second.append([(FACTS[2], 5.0)])) == [3]
    second.close()
    again = Journal.open(tmp_path)
    assert [record.seq for record in again.replay()] == [1, 2, 3]
    again.close()
