"""Removal of logs: of ended jobs, the oldest first, by age and by size; never a running job's."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Task
from orchestrator.journal.loss import last_with_logs
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.layout import present_jobs
from orchestrator.shell.logs.retention import Keep, Retention
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.tombstone import read_removed
from tests.orchestrator.core.playbook import prepared

NOW = 1_000_000.0
DAY = 86400.0


def job(number: int, ended_at: float | None, *, state: TaskState = TaskState.CLEANED) -> Any:
    """The part of a job that retention reads; one task, of attempt 1 on node 0."""
    exit_status = ExitStatus(code=0) if state is TaskState.CLEANED else None
    task = Task(TaskId(f"{number}.1.0"), JobId(number), 1, 0, NodeName("n1"), state=state)
    task.prepared, task.exit = prepared(), exit_status
    return SimpleNamespace(
        id=JobId(number),
        phase=JobPhase.ACTIVE if ended_at is None else JobPhase.ENDED,
        ended_at=ended_at,
        attempts=[SimpleNamespace(number=1, tasks=[task])],
        spec=SimpleNamespace(setup=None),
    )


@pytest.fixture(autouse=True, params=["in the state", "in the archive"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the place of jobs that have ended."""
    monkeypatch.setattr(Rig, "archived", request.param == "in the archive")


class Rig:
    archived = False

    def __init__(self, root: Path, *jobs: Any) -> None:
        self.root = root
        self.jobs = {found.id: found for found in jobs}
        self.store = LogStore(root, ChangeCounters(), SystemClock())
        known = {
            name: found
            for name, found in self.jobs.items()
            if found.phase is not JobPhase.ENDED or not self.archived
        }
        self.coordinator = SimpleNamespace(
            now=lambda: Instant(0.0, NOW),
            may_remove_by_age=lambda: True,
            state=SimpleNamespace(jobs=known),
            job=self._job,
            archive=SimpleNamespace(ended_at=self._ended_at),
        )

    async def _job(self, name: JobId) -> Any:
        return self.jobs.get(name)

    async def _ended_at(self, names: list[JobId]) -> dict[JobId, float]:
        if not self.archived:
            return {}
        return {name: self.jobs[name].ended_at for name in names if name in self.jobs}

    def write(self, number: int, size: int, *, delivered: bool = True) -> None:
        stream = self.stream(number)
        self.store.append(stream, 0, memoryview(bytes(size)), 1.0, lambda *_: None)
        if delivered:
            self.store.job(JobId(number)).stored.add((1, 0))

    def stream(self, number: int) -> StreamId:
        return StreamId(TaskId(f"{number}.1.0"), StreamKind.STDOUT, 0)

    def sweep(self, keep: Keep) -> list[int]:
        """Return the jobs that still have logs after an hour."""
        coordinator = cast("Coordinator", self.coordinator)
        retention = Retention(self.root, self.store, coordinator, keep)
        for passed_s in (0.0, 3600.0):
            self.coordinator.now = lambda at=passed_s: Instant(at, NOW - 3600.0 + at)
            asyncio.run(retention.sweep())
        return self.kept()

    def kept(self) -> list[int]:
        return sorted(n for n in self.jobs if (self.root / str(n) / "1").exists())


def test_old_logs_are_removed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, job(1, NOW - 9 * DAY), job(2, NOW - 5 * DAY), job(3, None))
    for number in (1, 2, 3):
        rig.write(number, 100)
    assert rig.sweep(Keep(7 * DAY, 1 << 40)) == [2, 3]
    mark = rig.store.job(JobId(1)).removed
    assert mark is not None
    assert mark.text(JobId(1)).startswith("the logs of job 1 were removed at 20")
    assert "more than 7 days before (job_logs.keep_s)" in mark.why
    assert rig.sweep(Keep(7 * DAY, 1 << 40)) == [2, 3], "again, nothing more"
    again = Rig(tmp_path, *rig.jobs.values())
    assert again.store.job(JobId(1)).removed == mark, "the mark outlives the process"
    rig.store.close()


def test_none_go_for_their_age_while_the_clock_is_in_doubt(tmp_path: Path) -> None:
    rig = Rig(tmp_path, job(1, NOW - 9 * DAY), job(2, NOW - 8 * DAY), job(3, NOW - DAY))
    for number in (1, 2, 3):
        rig.write(number, 10_000)
    rig.coordinator.may_remove_by_age = lambda: False
    assert rig.sweep(Keep(7 * DAY, 1 << 40)) == [1, 2, 3]
    assert rig.sweep(Keep(7 * DAY, 25_000)) == [2, 3], "what is too much has to go"
    rig.coordinator.may_remove_by_age = lambda: True
    assert rig.sweep(Keep(7 * DAY, 1 << 40)) == [3]
    rig.store.close()


def test_only_some_go_for_their_age_in_an_hour(tmp_path: Path) -> None:
    rig = Rig(tmp_path, *(job(number, NOW - 9 * DAY) for number in range(1, 31)))
    for number in rig.jobs:
        rig.write(number, 100)
    coordinator = cast("Coordinator", rig.coordinator)
    retention = Retention(tmp_path, rig.store, coordinator, Keep(7 * DAY, 1 << 40))
    for hours, kept in ((0.0, 30), (1.0, 20), (1.1, 19), (2.1, 9), (9.0, 0)):
        rig.coordinator.now = lambda hours=hours: Instant(3600.0 * hours, NOW + 3600.0 * hours)
        asyncio.run(retention.sweep())
        assert len(rig.kept()) == kept, hours
    rig.store.close()


def test_logs_of_before_the_clock_was_set_are_no_older_than_they_are(tmp_path: Path) -> None:
    """It was 1970 when job 2 ended, and then somebody said what time it is."""
    rig = Rig(tmp_path, job(1, NOW - DAY), job(2, 110.0), job(3, None))
    for number in (1, 2, 3):
        rig.write(number, 100)
    rig.coordinator.now = lambda: Instant(100.0, 100.0)
    retention = Retention(
        tmp_path, rig.store, cast("Coordinator", rig.coordinator), Keep(7 * DAY, 300)
    )
    rig.coordinator.now = lambda: Instant(120.0, NOW)
    asyncio.run(retention.sweep())
    assert rig.kept() == [2, 3], "there is too much, and job 1 is the oldest"
    rig.coordinator.now = lambda: Instant(200.0 + 7 * DAY, NOW)
    asyncio.run(retention.sweep())
    assert rig.kept() == [3]
    rig.store.close()


def test_a_job_whose_logs_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, *(job(number, NOW - 9 * DAY) for number in (1, 2, 3)))
    for number in (2, 3):
        rig.write(number, 100)
    (tmp_path / "1" / "1" / "0" / "stdout.0").mkdir(parents=True)  # a directory as a stream
    assert rig.sweep(Keep(7 * DAY, 1 << 40)) == [1]
    rig.store.close()


def test_only_names_of_jobs_are_looked_at(tmp_path: Path) -> None:
    for name in ("7", "007", "0", "9" * 18, "1" * 19, "1" * 30, "\u0663", "lost+found"):
        (tmp_path / name).mkdir()
    assert sorted(present_jobs(tmp_path)) == [7, int("9" * 18)]
    assert last_with_logs(tmp_path / "journal", tmp_path) == int("9" * 18)


def test_excess_logs_are_removed_oldest_first_and_never_of_a_running_job(tmp_path: Path) -> None:
    ages = {1: NOW - DAY, 2: NOW - 3 * DAY, 3: NOW - 2 * DAY}
    rig = Rig(tmp_path, *(job(n, at) for n, at in ages.items()), job(4, None))
    for number in (1, 2, 3, 4):
        rig.write(number, 10_000)
    assert rig.sweep(Keep(99 * DAY, 25_000)) == [1, 4]
    assert rig.sweep(Keep(99 * DAY, 1)) == [4]
    rig.store.close()


@pytest.mark.parametrize(
    ("ended_s_ago", "state", "kept"),
    [
        (60.0, TaskState.CLEANED, True),  # its node may still deliver
        (60.0, TaskState.LOST, False),
        (2 * 3600.0, TaskState.CLEANED, False),
    ],
)
def test_logs_still_arriving_are_awaited(
    tmp_path: Path, ended_s_ago: float, state: TaskState, kept: bool
) -> None:
    rig = Rig(tmp_path, job(1, NOW - ended_s_ago, state=state))
    rig.write(1, 100, delivered=False)
    assert rig.sweep(Keep(1.0, 1)) == ([1] if kept else [])
    rig.store.close()


def test_bytes_after_the_removal_of_logs_are_accepted_and_not_kept(tmp_path: Path) -> None:
    rig = Rig(tmp_path, job(1, NOW - DAY))
    rig.write(1, 100, delivered=False)
    assert rig.sweep(Keep(1.0, 1)) == []
    acks: list[int | None] = []
    stream = rig.stream(1)
    assert rig.store.size(stream) == 0
    late = memoryview(b"late")
    assert rig.store.append(stream, 0, late, 1.0, lambda _, to: acks.append(to)) == 0
    assert acks == [4]
    assert rig.store.end(stream, 4, lambda *_: None)
    assert asyncio.run(rig.store.end_task(stream.task, 1)), "its node may forget it"
    assert rig.kept() == []
    rig.store.close()


def test_a_crash_in_the_middle_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, job(1, NOW - DAY))
    rig.write(1, 100)
    rig.store.close()
    (tmp_path / "1" / "removed").write_text('{"at":1.0,"why":"x"}')
    after = Rig(tmp_path, *rig.jobs.values())
    assert after.store.job(JobId(1)).removed == read_removed(tmp_path / "1")
    assert after.store.job(JobId(1)).streams == {}
    assert after.sweep(Keep(1.0, 1)) == [], "the rest of it goes, too"
    assert (tmp_path / "1" / "removed").exists()


async def test_a_job_that_goes_to_the_archive_meanwhile_keeps_its_logs(tmp_path: Path) -> None:
    """Although jobs with higher numbers have been forgotten."""
    rig = Rig(tmp_path, job(1, NOW - 10.0))
    rig.write(1, 1000)
    rig.coordinator.forgot = lambda _: True
    rig.coordinator.state.jobs[JobId(1)] = rig.jobs[JobId(1)]

    async def moved(names: list[JobId]) -> dict[JobId, float]:
        rig.coordinator.state.jobs.clear()
        return {}

    rig.coordinator.archive.ended_at = moved
    await Retention(
        tmp_path, rig.store, cast(Coordinator, rig.coordinator), Keep(DAY, 10**9)
    ).sweep()
    assert present_jobs(tmp_path) == [1]
    assert read_removed(tmp_path / "1") is None
    rig.store.close()
