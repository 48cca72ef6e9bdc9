"""A journal that is not as it was left: refused with what to do, never read as something else."""

import contextlib
import errno
import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.daemon.errors import DirectoryLockedError, FileError
from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Inventory
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.journal import backup
from orchestrator.journal.archive import Archived
from orchestrator.journal.backup import (
    REMOVED_NAME,
    back_up,
    examined,
    examined_copy,
    restore,
)
from orchestrator.journal.errors import (
    CorruptJournalError,
    JournalError,
    LostLogError,
    NewerJournalError,
)
from orchestrator.journal.journal import Journal
from orchestrator.journal.new_file import new_file
from orchestrator.journal.records import Recorded
from orchestrator.journal.schema import FILE_NAME
from orchestrator.shell.replay import replay
from tests.orchestrator.journal.commands import command

FACTS: list[tuple[f.Fact, float]] = [
    (cf.EpochStarted(1, "abc"), 1.0),
    *(
        (f.JobSubmitted(JobId(n), JobSpec(name=f"job-{n}", run=Shell("true")), "ann"), 2.0)
        for n in range(1, 60)
    ),
]


def made(folder: Path, *, closed: bool = True) -> Path:
    """A state folder with a journal; where not `closed`, as a coordinator that was killed left."""
    work = folder / "work"
    journal = Journal.open(work)
    journal.begin_epoch()
    journal.append(FACTS[:10])
    journal.append(FACTS[10:])
    if closed:
        journal.close()
        return work
    killed = folder / "killed"
    shutil.copytree(work, killed)
    journal.close()
    return killed


def read(folder: Path) -> list[Recorded]:
    journal = Journal.open(folder)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def test_a_log_that_was_not_taken_in_is_read(tmp_path: Path) -> None:
    assert len(read(made(tmp_path, closed=False))) == len(FACTS)


def test_a_lost_log_is_noticed(tmp_path: Path) -> None:
    folder = made(tmp_path, closed=False)
    (folder / f"{FILE_NAME}-wal").unlink()
    for _ in range(2):
        with pytest.raises(LostLogError, match="-wal is missing"):
            read(folder)
        with pytest.raises(LostLogError, match="-wal is missing"):
            back_up(folder, tmp_path / "copy")


@pytest.mark.parametrize("how", ["removed", "emptied", "removed after a clean end"])
def test_a_lost_database_is_not_begun_anew(tmp_path: Path, how: str) -> None:
    folder = made(tmp_path, closed=how.endswith("end"))
    for name in folder.glob("journal.sqlite*"):
        name.unlink()
    if how == "emptied":
        (folder / FILE_NAME).touch()
    if how.endswith("end"):
        (folder / "logs" / "7").mkdir(parents=True)
    with pytest.raises(CorruptJournalError, match="is missing or empty"):
        read(folder)


def test_logs_on_another_disk_reveal_a_lost_database(tmp_path: Path) -> None:
    folder, logs = tmp_path / "state", tmp_path / "disk"
    (logs / "lost+found").mkdir(parents=True)
    Journal.open(folder, logs=logs).close()
    (folder / FILE_NAME).unlink()
    (logs / "7").mkdir()
    with pytest.raises(CorruptJournalError, match=f"is missing or empty, and {logs} "):
        Journal.open(folder, logs=logs)
    with (
        pytest.raises(CorruptJournalError, match="is missing or empty"),
        examined(folder, logs=logs),
    ):
        pass
    (folder / FILE_NAME).touch()
    with pytest.raises(CorruptJournalError, match=f"is missing or empty, and {logs} "):
        back_up(folder, tmp_path / "copy", logs)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_a_truncated_database_is_refused(tmp_path: Path, left: float) -> None:
    file = made(tmp_path) / FILE_NAME
    size = int(file.stat().st_size * left)
    with file.open("r+b") as opened:
        opened.truncate(size)
    before = file.read_bytes()
    with pytest.raises(CorruptJournalError, match=r"is damaged|checksum differs"):
        read(file.parent)
    assert file.read_bytes() == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("whole")) / FILE_NAME


@settings(max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_does_no_harm(
    place: float, bit: int, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(whole.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    folder = tmp_path_factory.mktemp("flipped")
    (folder / FILE_NAME).write_bytes(data)
    found: list[Recorded] | None = None
    try:
        found = read(folder)
    except JournalError:
        pass
    assert found is None or [(r.fact, r.at) for r in found] == FACTS
    shutil.rmtree(folder)


def test_a_value_that_was_changed_is_found_by_its_checksum(tmp_path: Path) -> None:
    folder = made(tmp_path)
    with sqlite3.connect(folder / FILE_NAME) as database:
        database.execute("UPDATE fact SET body = replace(body, 'job-7', 'job-8') WHERE seq = 8")
        database.execute("UPDATE fact SET body = CAST(body AS BLOB) WHERE seq = 8")
    database.close()
    with pytest.raises(
        CorruptJournalError, match="record 8 of the journal is not as it was written"
    ):
        read(folder)


@pytest.mark.parametrize("left", ["whole", "killed", "empty"])
def test_a_look_at_a_journal_changes_nothing(tmp_path: Path, left: str) -> None:
    folder = made(tmp_path, closed=left != "killed")
    facts = len(FACTS)
    if left == "empty":  # as a first start that was killed leaves it
        (folder / FILE_NAME).write_bytes(b"")
        (folder / "journal.closed").unlink()
        facts = 0
    before = files(folder)
    with examined(folder) as found:
        assert len(list(found)) == facts
        with pytest.raises(DirectoryLockedError):
            Journal.open(folder)
    assert files(folder) == before
    assert len(read(folder)) == facts


def files(folder: Path) -> dict[str, bytes]:
    """All but the index of the log, which any reader writes, and the lock."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ("lock", f"{FILE_NAME}-shm")
    }


def test_a_backup_is_made_beside_a_running_coordinator(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "state")
    journal.append(FACTS)
    back_up(tmp_path / "state", tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    with examined(tmp_path / "state") as records:
        assert len(list(records)) == len(FACTS)
    with pytest.raises(DirectoryLockedError):
        restore(tmp_path / "state", tmp_path / "copy", 60)
    journal.close()
    with examined_copy(tmp_path / "copy") as records:
        assert replay(records).next_job == 60


@pytest.mark.parametrize("readable", [True, False])
def test_a_backup_in_place_of_a_journal_gives_no_number_twice(
    tmp_path: Path, readable: bool
) -> None:
    folder = made(tmp_path)
    back_up(folder, tmp_path / "copy")
    journal = Journal.open(folder)
    last = max(journal.begin_epoch() for _ in range(5))
    journal.close()
    (folder / "logs" / "2000").mkdir(parents=True)
    if not readable:
        (folder / FILE_NAME).write_bytes(b"nothing that anybody can read" * 1000)
    aside, _, _ = restore(folder, tmp_path / "copy", 60)
    assert aside is not None
    assert aside.exists()
    journal = Journal.open(folder)
    assert len(list(journal.replay())) == len(FACTS) + 1, "and the record of the restore"
    assert journal.begin_epoch() > last, "agents serve no coordinator of an earlier life"
    assert journal.first_job > 2000
    journal.close()


def test_a_job_that_runs_again_after_a_restore_has_no_logs_of_its_first_run(tmp_path: Path) -> None:
    """The backup knows job 1 as waiting and job 2 as ended."""
    submitted = [
        (f.JobSubmitted(JobId(n), JobSpec(name="demo", run=Shell("true")), "ann"), 1.0)
        for n in (1, 2)
    ]
    cause = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by ann")
    with contextlib.closing(Journal.open(tmp_path / "state")) as journal:
        journal.begin_epoch()
        journal.append([*submitted, (f.JobEnded(JobId(2), cause), 2.0)])
    back_up(tmp_path / "state", tmp_path / "backup")
    logs = tmp_path / "state" / "logs"
    for run in (1, 2):
        for job in ("1", "2"):
            (logs / job / "1").mkdir(parents=True, exist_ok=True)
            (logs / job / "1" / "stdout").write_text(f"run {run}")
            (logs / job / REMOVED_NAME).write_text("{}")
        code, said = command(tmp_path, "restore", "BACKUP")
        assert code == 0, said
        assert not (logs / "1" / "1").exists()
        assert (logs / "1" / f"1.replaced-{run}" / "stdout").read_text() == f"run {run}"
        assert not (logs / "1" / REMOVED_NAME).exists()
        assert sorted(os.listdir(logs / "2")) == ["1", REMOVED_NAME], "job 2 stays"


def test_a_node_that_joins_again_after_a_restore_has_no_logs_of_another(tmp_path: Path) -> None:
    """A node joined the elastic gang of job 1 after the backup: the next one gets its rank."""
    job = JobId(1)
    spec = JobSpec(name="demo", run=Shell("true"), nodes=2, max_nodes=4)
    with contextlib.closing(Journal.open(tmp_path / "state")) as journal:
        journal.begin_epoch()
        journal.append(
            [
                *(
                    (cf.NodeRegistered(NodeName(n), "a", "b", "1", Inventory("10.0.0.1", "m")), 1.0)
                    for n in ("n1", "n2")
                ),
                (f.JobSubmitted(job, spec, "ann"), 1.0),
                (f.AttemptPlaced(job, 1, (NodeName("n1"), NodeName("n2"))), 2.0),
            ]
        )
    back_up(tmp_path / "state", tmp_path / "backup")
    folder = tmp_path / "state" / "logs" / "1" / "1"
    for rank in range(4):
        (folder / str(rank)).mkdir(parents=True)
        (folder / str(rank) / "stdout").write_text(f"of {rank}")
    (folder / "silent").write_text("1\n5\n")
    code, said = command(tmp_path, "restore", "BACKUP")
    assert code == 0, said
    assert set(os.listdir(folder)) == {"0", "1", "2.replaced-1", "3.replaced-1", "silent"}
    assert (folder / "2.replaced-1" / "stdout").read_text() == "of 2"
    assert (folder / "silent").read_text() == "1\n"


@pytest.mark.parametrize("shown_by", ["logs on another disk", "the journal", "its archive"])
def test_a_job_after_the_backup_keeps_its_number(tmp_path: Path, shown_by: str) -> None:
    folder, logs = made(tmp_path), tmp_path / "disk"
    back_up(folder, tmp_path / "copy")
    logs.mkdir()
    if shown_by == "logs on another disk":
        (logs / "2000").mkdir()
    else:
        journal = Journal.open(folder)
        journal.append(
            [(f.JobSubmitted(JobId(2000), JobSpec(name="late", run=Shell("true")), "ann"), 3.0)]
        )
        if shown_by == "its archive":
            row = Archived(2000, "ann", "job", "default", "CANCELLED", 4.0, "", "", b"{}")
            assert journal.archive([row])
        journal.close()
    restore(folder, tmp_path / "copy", 60, logs)
    journal = Journal.open(folder)
    assert journal.first_job > 2000
    journal.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"", "is empty"), (b"text" * 999, "not a journal of Muster")],
)
def test_an_invalid_backup_is_not_restored(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    copy = tmp_path / "copy"
    if content is not None:
        copy.write_bytes(content)
    with pytest.raises(JournalError, match=said), examined_copy(copy):
        pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "is a folder; name a file that `muster backup` has written"),
        ("/dev/null", "/dev/null is no regular file; name a file that `muster backup`"),
        ("pipe", "pipe is no regular file"),
        ("n" * 300, "cannot be read (File name too long)"),
        ("work/lock/copy", "cannot be read (Not a directory)"),
        ("loop", "cannot be read (Too many levels of symbolic links)"),
        ("none", "none: there is no such file"),
    ],
)
def test_an_impossible_restore_is_reported_in_one_line(
    name: str, said: str, tmp_path: Path
) -> None:
    made(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(JournalError) as refused, examined_copy(tmp_path / name):
        pass
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("n" * 300, "cannot be written: File name too long"),
        ("n" * 252, "cannot be written: File name too long"),
        ("work/lock/copy", "cannot be written: Not a directory"),
        ("none/copy", "cannot be written: No such file or directory"),
        (".", "exists already"),
        ("/dev/null", "exists already"),
    ],
)
def test_a_backup_that_cannot_be_written_is_named_in_one_line(
    name: str, said: str, tmp_path: Path
) -> None:
    folder = made(tmp_path)
    before = files(folder)
    with pytest.raises(FileError) as refused:
        back_up(folder, tmp_path / name)
    assert said in str(refused.value)
    assert files(folder) == before


def test_the_second_of_two_backups_to_one_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copies = made(tmp_path), tmp_path / "copies"
    copies.mkdir()
    really, both = backup._write_copy, threading.Barrier(2, timeout=30)

    def write(database: sqlite3.Connection, copy: Path) -> None:
        both.wait()
        really(database, copy)
        both.wait()

    monkeypatch.setattr(backup, "_write_copy", write)
    with ThreadPoolExecutor(2) as two:
        asked = [two.submit(back_up, folder, copies / "copy") for _ in range(2)]
        why = [str(error) for one in asked if (error := one.exception(30)) is not None]
    assert why == [f"{copies / 'copy'} exists already; name a new file"]
    assert os.listdir(copies) == ["copy"]
    with examined_copy(copies / "copy") as found:
        assert len(list(found)) == len(FACTS)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_backup_needs_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    folder = made(tmp_path)

    def link(_from: Path, _to: Path) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", link)
    back_up(folder, tmp_path / "copy")
    with examined_copy(tmp_path / "copy") as found:
        assert len(list(found)) == len(FACTS)
    with pytest.raises(FileError, match="exists already"):
        back_up(folder, tmp_path / "copy")


def test_a_backup_removes_what_a_killed_one_left_and_nothing_of_a_living_one(
    tmp_path: Path,
) -> None:
    folder, copies = made(tmp_path), tmp_path / "copies"
    copies.mkdir()
    (copies / ".copy.0badcafe.tmp").write_bytes(b"half of a journal")
    (copies / ".copy.0badcafe.tmp-journal").write_bytes(b"its log")
    (copies / ".copy2.0badcafe.tmp").write_bytes(b"of another name")
    with contextlib.ExitStack() as held:
        living = held.enter_context(new_file(copies / "copy"))
        back_up(folder, copies / "copy")
        assert set(os.listdir(copies)) == {living.name, "copy", ".copy2.0badcafe.tmp"}
        with pytest.raises(FileError, match="exists already"):
            held.close()
    assert set(os.listdir(copies)) == {"copy", ".copy2.0badcafe.tmp"}
    with examined_copy(copies / "copy") as found:
        assert len(list(found)) == len(FACTS)


def test_a_journal_with_its_log_beside_it_is_no_backup(tmp_path: Path) -> None:
    back_up(made(tmp_path), tmp_path / "copy")
    (tmp_path / "copy-wal").write_bytes(b"what was committed last")
    with pytest.raises(JournalError, match="wal_checkpoint"), examined_copy(tmp_path / "copy"):
        pass


def test_a_backup_of_a_newer_muster_is_not_restored(tmp_path: Path) -> None:
    back_up(made(tmp_path), tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(NewerJournalError, match="layout 99"), examined_copy(tmp_path / "copy"):
        pass
