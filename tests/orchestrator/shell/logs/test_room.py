"""A log disk that runs short: ended logs go, small jobs go on, and room is used at once."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.log_channel import StreamId, StreamKind
from orchestrator.core.model.job import JobPhase
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.room import MakeRoom
from orchestrator.shell.logs.space import FILES_MIN
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError
from tests.small_disk import small_disk

MIB = 1 << 20
DISK = 64 * MIB
FLOOR = 2 * MIB
NOW = 1e6


class Rig:
    """A store on a disk whose free bytes are counted here; `others` is used by somebody else."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch | None) -> None:
        self.root = root
        self.others = 0
        self.now = Instant(0.0, NOW)
        self.store = LogStore(root, ChangeCounters(), SystemClock(), free_bytes_min=FLOOR)
        if monkeypatch is not None:
            monkeypatch.setattr(type(self.store.space), "free", lambda _: self.free())
        self.jobs: dict[JobId, Any] = {}
        self.archived: dict[JobId, float] = {}
        self.gone: list[int] = []
        coordinator = SimpleNamespace(
            now=lambda: self.now,
            state=SimpleNamespace(jobs=self.jobs),
            archive=SimpleNamespace(ended_at=self._ended_at),
        )
        self.room = MakeRoom(root, self.store.space, cast("Coordinator", coordinator), self.remove)

    async def _ended_at(self, names: list[JobId]) -> dict[JobId, float]:
        return {name: self.archived[name] for name in names if name in self.archived}

    async def remove(self, job: JobId, why: str, size: int) -> None:
        self.gone.append(job)
        await self.store.remove(job, why)

    def free(self) -> int:
        used = sum(
            os.stat(os.path.join(above, name)).st_size
            for above, _, files in os.walk(self.root)
            for name in files
        )
        return DISK - self.others - used

    def job(self, number: int, ended_at: float | None = None) -> StreamId:
        phase = JobPhase.ACTIVE if ended_at is None else JobPhase.ENDED
        self.jobs[JobId(number)] = SimpleNamespace(phase=phase, ended_at=ended_at)
        return StreamId(TaskId(f"{number}.1.0"), StreamKind.STDOUT, 0)

    def put(self, stream: StreamId, size: int) -> bool:
        at = self.store.size(stream)
        try:
            self.store.append(stream, at, memoryview(bytes(size)), 1.0, lambda *_: None)
        except LogStoreError:
            return False
        return True

    def fill(self, stream: StreamId, most: int = DISK) -> int:
        """Write until no more is taken."""
        written = 0
        while written < most and self.put(stream, MIB // 4):
            written += MIB // 4
        return written

    def make(self) -> None:
        asyncio.run(self.room.make())


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path, monkeypatch)
    yield made
    made.store.close()


def test_a_greedy_job_waits_and_a_small_one_goes_on(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy, honest = rig.job(1), rig.job(2)
    assert rig.put(honest, 100)
    assert rig.fill(greedy) > DISK // 2
    assert rig.store.space.short.is_set(), "it is noticed at once"
    (late,) = rig.store.job(JobId(1)).late.values()
    assert "more than its share" in late.why
    assert "the node keeps it" in late.why
    rig.make()
    assert rig.gone == [], "nothing of a running job is removed"
    assert rig.store.space.waiting == {1}
    for _ in range(100):
        assert rig.put(honest, 1000)
    assert not rig.put(greedy, 1)
    assert not rig.store.has_room(greedy)
    assert rig.store.has_room(honest)
    assert rig.put(rig.job(3), 1000), "a job that begins now finds room, too"
    rig.make()
    said = capsys.readouterr().out
    assert said.count("log_store_short") == 1, "once, as long as it is the same"
    assert "'job': 1" in said


def test_when_the_greedy_job_has_ended_its_logs_go_and_all_goes_on(rig: Rig) -> None:
    old, young, greedy, honest = rig.job(1, NOW - 9), rig.job(2, NOW - 5), rig.job(3), rig.job(4)
    rig.put(old, MIB)
    rig.put(young, 9 * MIB)
    assert rig.fill(greedy)
    rig.make()
    assert rig.gone == [1, 2], "ended jobs go first"
    assert rig.fill(greedy)
    rig.make()
    assert rig.gone == [1, 2]
    assert rig.store.space.waiting == {3}
    rig.others += rig.free() - FLOOR
    assert not rig.put(honest, 1000), "not a byte of what is left to others is taken"
    rig.job(3, NOW)
    rig.make()
    assert rig.gone == [1, 2, 3]
    assert rig.put(honest, 1000)
    assert rig.fill(honest) > DISK // 8
    rig.others = 0
    rig.make()
    assert not rig.store.space.is_short
    assert not rig.store.space.short.is_set()
    rig.make()
    assert rig.gone == [1, 2, 3], "what has gone is not taken for something to remove"


def test_archived_jobs_are_removed_and_unknown_ones_are_left_alone(rig: Rig) -> None:
    archived, unknown = rig.job(1, NOW), rig.job(2, NOW)
    rig.put(archived, MIB)
    rig.put(unknown, MIB)
    rig.archived[JobId(1)] = NOW - 7200
    rig.jobs.clear()
    rig.others = rig.free() - FLOOR
    rig.make()
    assert rig.gone == [1]


def test_a_job_whose_logs_cannot_be_removed_holds_up_no_other(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck, other, running = rig.job(1, NOW - 9), rig.job(2, NOW - 5), rig.job(3)
    rig.put(stuck, 4 * MIB)
    rig.put(other, 4 * MIB)
    rig.others = rig.free() - FLOOR
    really = rig.store.remove
    broken = [True]

    async def remove(job: JobId, why: str) -> None:
        assert why == (
            "less than 4194304 bytes were free on the disk of the logs, and of the jobs that have "
            "ended, this one ended first (job_logs.free_bytes_min)"
        )
        if job == 1 and broken[0]:
            raise LogStoreError("logs/1 cannot be removed: Input/output error")
        await really(job, why)

    monkeypatch.setattr(rig.store, "remove", remove)
    rig.make()
    assert not (tmp_path / "2" / "1").exists()
    assert rig.put(running, 1000)
    rig.others += rig.free() - FLOOR
    rig.put(rig.job(4, NOW - 1), 0)
    for _ in range(3):
        rig.make()
    said = capsys.readouterr().out
    assert said.count("log_room_failed") == 1, "once, and not each time"
    assert "Input/output error" in said
    broken[0] = False
    rig.make()
    assert not (tmp_path / "1" / "1").exists()
    rig.others = 0
    rig.make()
    assert not rig.store.space.is_short


def test_it_waits_until_the_store_is_short(rig: Rig) -> None:
    async def main() -> None:
        ended, running = rig.job(1, NOW), rig.job(2)
        removed = asyncio.Event()

        async def remove(job: JobId, why: str, size: int) -> None:
            await rig.store.remove(job, why)
            removed.set()

        rig.room._remove = remove
        run = asyncio.get_running_loop().create_task(rig.room.run())
        rig.put(ended, MIB)
        rig.others = rig.free() - FLOOR
        assert not rig.put(running, 1000)
        await removed.wait()
        assert rig.put(running, 1000)
        run.cancel()

    asyncio.run(asyncio.wait_for(main(), 180))


def test_without_a_reserve_nothing_is_shared(rig: Rig) -> None:
    rig.store.space.free_min = 0
    rig.others = DISK
    assert rig.put(rig.job(1), MIB)
    assert not rig.store.space.short.is_set()


@pytest.mark.root
def test_inodes_are_freed_and_shared_as_bytes_are(tmp_path: Path) -> None:
    """Many small jobs use up the inodes of a disk long before its bytes."""
    with small_disk(tmp_path / "disk", DISK, inodes=2 * FILES_MIN + 200) as disk:
        rig = Rig(disk, None)
        for number in range(1, 61):
            assert rig.put(rig.job(number, ended_at=float(number)), 10)
        greedy = [rig.job(100), rig.job(101)]
        assert rig.store.space.room()[1]
        asyncio.run(rig.room.make())
        assert rig.gone[:3] == [1, 2, 3]
        free, _ = rig.store.space.room()
        assert free >= 2 * FLOOR
        (disk / "of others").mkdir()
        for number in range(2 * FILES_MIN):
            try:
                (disk / "of others" / str(number)).touch()
            except OSError:
                break
        assert not rig.put(greedy[0], 10)
        late = rig.store.job(JobId(100)).late
        assert any("inodes would be left" in one.why for one in late.values())


def test_logs_of_a_job_that_ended_before_the_clock_was_set_are_no_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.now = Instant(1000.0, 100.0)
    rig.room = MakeRoom(tmp_path, rig.store.space, rig.room._coordinator, rig.remove)
    for number, at in ((1, NOW - 60.0), (2, 110.0)):
        rig.fill(rig.job(number, ended_at=at), 28 * MIB)
    rig.now = Instant(1020.0, NOW)
    rig.others = rig.free() - FLOOR
    asyncio.run(rig.room.make())
    assert rig.gone == [1]
