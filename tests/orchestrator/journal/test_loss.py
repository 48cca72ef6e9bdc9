"""A state folder that lacks something, or has what is not its own: begun anew only where it is
empty, read only where nothing that was committed is missing, refused else, and left as it is."""

import itertools
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.daemon.errors import FileError
from muster.protocol.ids import JobId
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.journal import mark
from orchestrator.journal.backup import back_up, examined, examined_copy, restore, salvaged
from orchestrator.journal.errors import CorruptJournalError, JournalError, LostTailError
from orchestrator.journal.journal import Journal
from orchestrator.journal.mark import Marked, Note
from orchestrator.journal.schema import FILE_NAME
from orchestrator.shell.replay import replay
from tests.small_disk import small_disk

LOG: Final = f"{FILE_NAME}-wal"
INDEX: Final = f"{FILE_NAME}-shm"
MARK: Final = mark.FILE_NAME
PARTS: Final = (FILE_NAME, LOG, INDEX, MARK)
STATES: Final = ("ours", "missing", "empty", "other")
COMMITS: Final = 12
FRAME: Final = 24 + 4096


def job(number: int, user: str) -> tuple[f.Fact, float]:
    spec = JobSpec(name=f"job-{number}", run=Shell("x" * 3000))
    return f.JobSubmitted(JobId(number), spec, user), 2.0


def killed(folder: Path, user: str) -> Path:
    """Leave the files of a killed coordinator: one job in the database, the others in the log."""
    work = folder / "work"
    journal = Journal.open(work)
    journal.begin_epoch()
    journal.append([(cf.EpochStarted(1, user), 1.0), job(1, user)])
    journal.close()
    journal = Journal.open(work)
    journal.begin_epoch()
    for number in range(2, COMMITS):
        journal.append([job(number, user)])
    left = folder / user
    shutil.copytree(work, left)
    journal.close()
    return left


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: killed(tmp_path_factory.mktemp(name), user)
        for name, user in (("ours", "ann"), ("other", "bob"))
    }


def jobs(folder: Path) -> list[tuple[str, int]]:
    with closing(Journal.open(folder)) as journal:
        facts = [record.fact for record in journal.replay()]
    return [(fact.user, fact.job) for fact in facts if isinstance(fact, f.JobSubmitted)]


def all_of(user: str, last: int = COMMITS - 1) -> list[tuple[str, int]]:
    return [(user, number) for number in range(1, last + 1)]


def contents(folder: Path) -> dict[str, bytes]:
    """All but the lock, and the index, which any reader makes anew."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name not in ("lock", INDEX)
    }


def expected(states: dict[str, str]) -> str | list[tuple[str, int]]:
    """Return words of the expected refusal, or the expected jobs."""
    database, log, marked = states[FILE_NAME], states[LOG], states[MARK]
    if database in ("missing", "empty"):
        left = [state for part, state in states.items() if part != FILE_NAME]
        return [] if set(left) == {"missing"} else "is missing or empty"
    user = {"ours": "ann", "other": "bob"}[database]
    if log == "missing" and marked != "missing":
        return "-wal is missing"
    if log == "empty" and marked in ("ours", "other"):
        return "-wal is empty"
    if log in ("missing", "empty"):
        return all_of(user, 1)  # as after a clean end
    if log != database or (marked in ("ours", "other") and marked != database):
        return "is not the database"
    return all_of(user)


@pytest.mark.parametrize(
    "states",
    [dict(zip(PARTS, states, strict=True)) for states in itertools.product(STATES, repeat=4)],
    ids=lambda states: "-".join(states.values()),
)
def test_missing_empty_and_foreign_files_lose_nothing_silently(
    states: dict[str, str], clusters: dict[str, Path], tmp_path: Path
) -> None:
    for part, state in states.items():
        if state in clusters:
            shutil.copyfile(clusters[state] / part, tmp_path / part)
        elif state == "empty":
            (tmp_path / part).touch()
    before = contents(tmp_path)
    outcome = expected(states)
    if isinstance(outcome, str):
        for look in (jobs, lambda folder: examined(folder).__enter__()):
            with pytest.raises(CorruptJournalError, match=outcome):
                look(tmp_path)
        with pytest.raises(JournalError, match=outcome):
            back_up(tmp_path, tmp_path / "copy")
        assert contents(tmp_path) == before, "all is there for whoever mends it"
    else:
        assert jobs(tmp_path) == outcome


@pytest.mark.parametrize(
    "trace",
    ["logs/7/", "journal.reserve", f"{FILE_NAME}.replaced-1", f".{FILE_NAME}.restored"],
)
@pytest.mark.parametrize("database", ["missing", "empty", "without tables"])
def test_only_a_folder_without_a_trace_is_begun_anew(
    trace: str, database: str, tmp_path: Path
) -> None:
    path = tmp_path / trace
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if trace.endswith("/") else path.write_bytes(b"x")
    if database == "empty":
        (tmp_path / FILE_NAME).touch()
    if database == "without tables":
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as made:
            made.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(CorruptJournalError, match="is missing or empty"):
        jobs(tmp_path)


def test_a_backup_that_was_copied_by_hand_is_not_read_with_the_log_of_the_journal(
    clusters: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    shutil.copytree(clusters["ours"], folder)
    back_up(folder, tmp_path / "copy")
    shutil.copyfile(tmp_path / "copy", folder / FILE_NAME)
    with pytest.raises(CorruptJournalError, match="is not the database"):
        jobs(folder)


def spoiled(clusters: dict[str, Path], folder: Path, *, marked: bool) -> Path:
    """Return the log of a copied state folder, to be spoiled. Without `marked`: as after a power
    failure before the mark was synced."""
    shutil.copytree(clusters["ours"], folder)
    if not marked:
        (folder / MARK).write_bytes(b"")
    return folder / LOG


@pytest.mark.parametrize("marked", [True, False], ids=["killed", "power failure"])
@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_log_costs_no_job_in_silence(
    *,
    marked: bool,
    place: float,
    bit: int,
    clusters: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = spoiled(clusters, tmp_path_factory.mktemp("flipped") / "state", marked=marked)
    data = bytearray(log.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    log.write_bytes(data)
    found: list[tuple[str, int]] | None = None
    try:
        found = jobs(log.parent)
    except LostTailError:
        assert log.read_bytes() == data
    # Indistinguishable from a write that was cut off: the last transaction, and the one before
    # where it is its end that is damaged.
    least = COMMITS - 1 if marked else COMMITS - 3
    assert found is None or found in [all_of("ann", last) for last in range(least, COMMITS)]
    shutil.rmtree(log.parent)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.5, 0.9])
def test_a_log_that_was_cut_is_refused(
    left: float, clusters: dict[str, Path], tmp_path: Path
) -> None:
    log = spoiled(clusters, tmp_path / "state", marked=True)
    with log.open("r+b") as file:
        file.truncate(int(left * log.stat().st_size))
    with pytest.raises(LostTailError, match=r"is empty|is cut off or damaged: record"):
        jobs(log.parent)


@pytest.mark.parametrize("kept", [*itertools.product([False, True], repeat=4)])
def test_a_commit_that_a_power_failure_cut_off_is_no_damage(
    kept: tuple[bool, ...], clusters: dict[str, Path], tmp_path: Path
) -> None:
    """Any part of an unsynced write may be on the disk, the last frame without the first."""
    log = spoiled(clusters, tmp_path / "state", marked=True)
    data = bytearray(log.read_bytes())
    pages = [
        struct.unpack_from(">I", data, at + 4)[0] for at in range(32, len(data) - FRAME + 1, FRAME)
    ]
    ends = [number for number, page in enumerate(pages) if page]
    last = range(ends[-2] + 1, ends[-1] + 1)
    assert len(last) == len(kept), "frames of the last transaction"
    for number, there in zip(last, kept, strict=True):
        if not there:
            at = 32 + number * FRAME
            data[at : at + FRAME] = bytes(FRAME)
    log.write_bytes(data)
    marked = Marked.read(log.parent / FILE_NAME)
    assert marked is not None
    assert marked.note is not None
    note = marked.note
    (log.parent / MARK).write_bytes(Note(note.database, note.epoch, COMMITS - 1, note.salt).line())
    with closing(Journal.open(log.parent)) as journal:
        in_doubt = journal.doubt
    assert jobs(log.parent) == all_of("ann", COMMITS - 1 if all(kept) else COMMITS - 2)
    assert bool(in_doubt) == (kept[-1] and not all(kept)), "that is said"


def test_frames_of_before_the_log_was_begun_anew_are_no_damage(tmp_path: Path) -> None:
    work = tmp_path / "work"
    journal = Journal.open(work)
    journal.begin_epoch()
    for number in range(1, 400):
        journal.append([job(number, "ann")])
    shutil.copytree(work, tmp_path / "left")
    journal.close()
    with (tmp_path / "left" / LOG).open("rb") as file:
        (times,) = struct.unpack(">I", file.read(16)[12:])
    assert times > 1, "it was begun anew since the start"
    assert jobs(tmp_path / "left") == all_of("ann", 399)


def test_readable_records_are_salvaged(clusters: dict[str, Path], tmp_path: Path) -> None:
    log = spoiled(clusters, tmp_path / "state", marked=True)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with salvaged(log.parent, None, replay) as copy:
        with examined_copy(copy) as found:
            known = len(replay(found).jobs)
        aside, _, _ = restore(log.parent, copy, known + 1)
    assert 1 < known < COMMITS - 1
    assert jobs(log.parent) == all_of("ann", known)
    assert Path(f"{aside}-wal").read_bytes() == data, "the damaged one is kept"
    assert sorted(log.parent.glob(".journal*")) == []
    with closing(Journal.open(log.parent)) as journal:
        assert journal.first_job > COMMITS
        assert journal.begin_epoch() > 3


def test_checkpointed_records_survive_a_damaged_log(tmp_path: Path) -> None:
    """The database has all of the log already, whose readable part would put back old pages."""
    work = tmp_path / "work"
    journal = Journal.open(work)
    journal.begin_epoch()
    journal.append([(cf.EpochStarted(1, "ann"), 1.0)])
    for number in range(1, COMMITS):
        journal.append([job(number, "ann")])
    journal._checkpoint()
    folder = tmp_path / "left"
    shutil.copytree(work, folder)
    journal.close()
    data = bytearray((folder / LOG).read_bytes())
    data[len(data) // 3] ^= 1
    (folder / LOG).write_bytes(data)
    with pytest.raises(LostTailError):
        jobs(folder)
    with salvaged(folder, None, replay) as copy:
        restore(folder, copy, COMMITS)
    assert jobs(folder) == all_of("ann")


def test_a_journal_that_lacks_nothing_is_not_salvaged(
    clusters: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(clusters, tmp_path / "state", marked=True).parent
    with pytest.raises(JournalError, match="is complete"), salvaged(folder, None, replay):
        pass


def test_a_restore_that_fails_leaves_nothing_of_itself(
    clusters: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(clusters, tmp_path / "state", marked=True).parent
    (tmp_path / "copy").write_bytes(b"no database" * 1000)
    before = contents(folder)
    with pytest.raises(FileError, match="cannot be restored"):
        restore(folder, tmp_path / "copy", COMMITS)
    assert contents(folder) == before


@pytest.mark.root
def test_a_restore_that_finds_no_room_gives_back_what_it_took(
    clusters: dict[str, Path], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = spoiled(clusters, disk / "state", marked=True).parent
        (tmp_path / "copy").write_bytes(bytes(2 << 20))
        with pytest.raises(FileError, match="No space left"):
            restore(folder, tmp_path / "copy", COMMITS)
        assert sorted(folder.glob(".journal*")) == []
        assert jobs(folder) == all_of("ann")


@pytest.mark.parametrize("by", ["start", "restore"])
def test_remains_of_a_killed_restore_are_removed(
    by: str, clusters: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(clusters, tmp_path / "state", marked=True).parent
    back_up(folder, tmp_path / "copy")
    for what in ("restored", "salvaged"):
        (folder / f".{FILE_NAME}.{what}").write_bytes(b"half")
        (folder / f".{FILE_NAME}.{what}-journal").write_bytes(b"half")
    if by == "restore":
        restore(folder, tmp_path / "copy", COMMITS)
    else:
        assert jobs(folder) == all_of("ann")
    assert sorted(folder.glob(".journal*")) == []
