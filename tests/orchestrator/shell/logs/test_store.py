"""Log bytes on disk: by offset, once, in order, whatever is sent twice, late or cut off."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import BadId, JobId, TaskId
from muster.protocol.link.log_channel import StreamId, StreamKind
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs import job_cache, job_streams, sync_rounds
from orchestrator.shell.logs import store as store_module
from orchestrator.shell.logs.index import RECORD_BYTES, IndexFile, index_path
from orchestrator.shell.logs.store import LogStore, log_key
from orchestrator.shell.logs.stream_file import LogStoreError, NotWantedError
from orchestrator.shell.logs.tombstone import write_removed

TASK = TaskId("7.2.1")
OUT = StreamId(TASK, StreamKind.STDOUT, 3)
SETUP = StreamId(TASK, StreamKind.SETUP)


class Rig:
    """A store over a folder, its sync task, and what it said was synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes = ChangeCounters()
        self.store = LogStore(root, self.changes, SystemClock())
        self.acks: list[tuple[StreamId, int | None]] = []
        self.acked = asyncio.Event()

    def put(self, offset: int, data: bytes, stream: StreamId = OUT, ts: float = 1.0) -> int | None:
        return self.store.append(stream, offset, memoryview(data), ts, self.synced)

    def end(self, length: int, stream: StreamId = OUT) -> bool:
        return self.store.end(stream, length, self.synced)

    def synced(self, stream: StreamId, offset: int | None) -> None:
        self.acks.append((stream, offset))
        self.acked.set()

    def content(self, stream: StreamId = OUT) -> bytes:
        return self.store.stream(stream).path.read_bytes()


def with_store(tmp_path: Path, main: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        rig = Rig(tmp_path / "logs")
        syncing = asyncio.get_running_loop().create_task(rig.store.run())
        try:
            async with asyncio.timeout(180):
                await main(rig)
        finally:
            syncing.cancel()
            rig.store.close()

    asyncio.run(run())


def test_bytes_are_taken_in_order_and_once(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        assert rig.put(0, b"abc") == 3
        assert rig.put(3, b"def") == 3
        assert rig.put(0, b"abc") == 0, "all of it is known"
        assert rig.put(4, b"efgh") == 2, "its end is new"
        assert rig.content() == b"abcdefgh"
        assert (rig.root / "7/2/1/stdout.3").read_bytes() == b"abcdefgh"

    with_store(tmp_path, main)


def test_a_gap_is_not_filled_with_anything(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        assert rig.put(0, b"abc") == 3
        assert rig.put(5, b"fgh") is None
        assert rig.content() == b"abc"
        assert rig.put(3, b"de") == 2
        assert rig.put(5, b"fgh") == 3
        assert rig.content() == b"abcdefgh"

    with_store(tmp_path, main)


def test_it_says_what_is_on_disk_and_bumps_the_job(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        seen = rig.changes.count(log_key(JobId(7)))
        rig.put(0, b"abc")
        rig.put(0, b"x", SETUP)
        assert rig.changes.count(log_key(JobId(7))) == seen + 2
        assert rig.acks == []
        await rig.store.sync()
        assert sorted(rig.acks, key=str) == sorted([(OUT, 3), (SETUP, 1)], key=str)

    with_store(tmp_path, main)


def test_a_restart_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    async def first(rig: Rig) -> None:
        rig.put(0, b"abc", ts=5.0)

    async def second(rig: Rig) -> None:
        assert rig.store.stream(OUT).size == 3
        assert rig.put(3, b"def", ts=4.0) == 3
        path = rig.store.stream(OUT).path
        entries = IndexFile(path).read(0, 9)
        assert [(e.start, e.length, e.ts, e.seq) for e in entries] == [
            (0, 3, 5.0, 1),
            (3, 3, 5.0, 2),  # time never runs back within a stream
        ]

    with_store(tmp_path, first)
    with_store(tmp_path, second)


def test_a_character_is_never_cut_by_the_index(tmp_path: Path) -> None:
    text = "a€b😀c".encode()

    async def main(rig: Rig) -> None:
        for at in range(len(text)):
            rig.put(at, text[at : at + 1])
        assert rig.end(len(text))
        path = rig.store.stream(OUT).path
        parts = [text[e.start : e.end].decode() for e in IndexFile(path).read(0, 99)]
        assert parts == ["a", "€", "b", "😀", "c", ""]

    with_store(tmp_path, main)


def test_bytes_that_are_no_text_are_indexed_too(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 3 + b"\xf0\x9f"

    async def main(rig: Rig) -> None:
        for at in range(0, len(raw), 7):
            rig.put(at, raw[at : at + 7])
        assert rig.end(len(raw))
        path = rig.store.stream(OUT).path
        assert b"".join(raw[e.start : e.end] for e in IndexFile(path).read(0, 999)) == raw

    with_store(tmp_path, main)


@pytest.mark.parametrize("left", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 5])
def test_an_index_damaged_by_a_crash_is_repaired(tmp_path: Path, left: int) -> None:
    async def first(rig: Rig) -> None:
        rig.put(0, b"abc\n")
        rig.put(4, b"def\n")
        rig.put(0, b"x", SETUP)

    async def second(rig: Rig) -> None:
        assert rig.put(8, b"ghi\n") == 4
        path = rig.store.stream(OUT).path
        entries = IndexFile(path).read(0, 99)
        assert [e.start for e in entries[1:]] == [e.end for e in entries[:-1]]
        assert (entries[0].start, entries[-1].end) == (0, 12)
        seqs = [e.seq for e in entries] + [
            IndexFile(rig.store.stream(SETUP).path).read(0, 1)[0].seq
        ]
        assert len(set(seqs)) == len(seqs), "two arrivals with one number"

    with_store(tmp_path, first)
    index = index_path(tmp_path / "logs/7/2/1/stdout.3")
    index.write_bytes(index.read_bytes()[:left])
    with_store(tmp_path, second)


def test_records_of_bytes_that_a_crash_lost_are_dropped(tmp_path: Path) -> None:
    async def first(rig: Rig) -> None:
        rig.put(0, b"abc\n")
        rig.put(4, b"def\n")

    async def second(rig: Rig) -> None:
        assert rig.store.stream(OUT).size == 6
        assert rig.put(6, b"f\n") == 2
        entries = IndexFile(rig.store.stream(OUT).path).read(0, 99)
        assert [e.start for e in entries[1:]] == [e.end for e in entries[:-1]]
        assert entries[-1].end == 8

    with_store(tmp_path, first)
    data = tmp_path / "logs/7/2/1/stdout.3"
    data.write_bytes(data.read_bytes()[:6])
    with_store(tmp_path, second)


@pytest.mark.parametrize("honest", [b"", b"ghi\n"], ids=["only zeros", "bytes and zeros"])
def test_zeros_that_a_power_cut_left_are_no_output(tmp_path: Path, honest: bytes) -> None:
    async def first(rig: Rig) -> None:
        rig.put(0, b"abc\n")

    async def second(rig: Rig) -> None:
        assert rig.store.stream(OUT).size == 4 + len(honest)
        assert rig.put(4, b"ghi\njkl\n") == 8 - len(honest)
        assert rig.content() == b"abc\nghi\njkl\n"

    with_store(tmp_path, first)
    with (tmp_path / "logs/7/2/1/stdout.3").open("ab") as data:
        data.write(honest + bytes(70_000))
    with_store(tmp_path, second)


def test_a_task_is_stored_when_all_its_streams_have_ended(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        rig.put(0, b"abc")
        assert not await rig.store.end_task(TASK, 1), "its stream goes on"
        assert not rig.end(5), "two bytes are missing"
        rig.put(3, b"de")
        assert rig.end(5)
        assert not await rig.store.end_task(TASK, 2), "a stream is missing"
        rig.put(0, b"", SETUP)
        assert rig.end(0, SETUP)
        assert await rig.store.end_task(TASK, 2)
        assert (OUT, 5) in rig.acks
        assert (2, 1) in rig.store.job(JobId(7)).stored

    async def later(rig: Rig) -> None:
        assert (2, 1) in rig.store.job(JobId(7)).stored
        assert await rig.store.end_task(TASK, 2), "said again, after a restart"
        assert rig.put(5, b"more") == 0, "nothing is added to a stream that has ended"
        assert rig.content() == b"abcde"

    with_store(tmp_path, main)
    with_store(tmp_path, later)


def test_a_task_without_logs_is_stored(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        assert await rig.store.end_task(TASK, 0)
        folder = rig.root / "7" / "2"
        assert [p.name for p in folder.iterdir()] == ["silent"], "no folder for nothing"
        with (folder / "silent").open("ab") as file:
            file.write(b"13")  # torn by a power cut: 130 perhaps

    async def later(rig: Rig) -> None:
        assert rig.store.job(JobId(7)).stored == {(2, 1)}

    with_store(tmp_path, main)
    with_store(tmp_path, later)


@pytest.mark.parametrize("task", ["7.2", "../../etc.1.1", "0.1.0", "7.2.1/..", "1.1.-1", ""])
def test_a_task_that_is_no_task_makes_no_folder(tmp_path: Path, task: str) -> None:
    async def main(rig: Rig) -> None:
        with pytest.raises(BadId):
            rig.put(0, b"x", StreamId(TaskId(task), StreamKind.STDOUT, 0))
        assert not rig.root.exists()

    with_store(tmp_path, main)


def test_a_rank_that_is_no_rank_is_refused(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        with pytest.raises(LogStoreError):
            rig.put(0, b"x", StreamId(TASK, StreamKind.STDOUT, -5))

    with_store(tmp_path, main)


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_a_task_has_no_more_streams_than_its_plan_allows(tmp_path: Path, again: bool) -> None:
    allowed = 6

    async def main(rig: Rig) -> None:
        rig.store = LogStore(rig.root, rig.changes, SystemClock(), streams_max=lambda _: allowed)
        names = [StreamId(TASK, StreamKind.STDOUT, rank) for rank in range(2 * allowed)]
        for name in names[:allowed]:
            rig.put(0, b"ab", name)
        if again:
            rig.store.close()
            rig.store = LogStore(
                rig.root, rig.changes, SystemClock(), streams_max=lambda _: allowed
            )
        for name in names[allowed:]:
            with pytest.raises(NotWantedError, match=f"task {TASK} has {allowed} logs"):
                rig.store.size(name)
        other = StreamId(TaskId("7.2.0"), StreamKind.STDOUT, 0)
        assert rig.store.size(other) == 0, "the bound is of a task"
        assert len(rig.store.job(JobId(7)).streams) == allowed + 1
        for name in names[:allowed]:
            rig.end(2, name)
        syncing = asyncio.get_running_loop().create_task(rig.store.run())
        assert await rig.store.end_task(TASK, allowed)
        syncing.cancel()

    with_store(tmp_path, main)


def test_the_logs_of_a_job_are_listed_once_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(rig: Rig) -> None:
        rig.put(0, b"ab")
        rig.store.close()
        rig.store = LogStore(rig.root, rig.changes, SystemClock())
        reads: list[Path] = []
        go_on = threading.Event()
        read = job_streams.JobStreams._load

        def slowly(logs: job_streams.JobStreams) -> None:
            reads.append(logs.root)
            assert go_on.wait(30)
            read(logs)

        monkeypatch.setattr(job_streams.JobStreams, "_load", slowly)
        loads = [asyncio.create_task(rig.store.load(JobId(7))) for _ in range(2)]
        await asyncio.sleep(0)
        loads[0].cancel()
        with pytest.raises(LogStoreError, match="being loaded"):
            rig.store.job(JobId(7))
        go_on.set()
        await loads[1]
        assert rig.store.size(OUT) == 2
        await rig.store.load(JobId(7))
        assert len(reads) == 1

    with_store(tmp_path, main)


def test_more_streams_than_descriptors(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        rig.store._open_max = 4
        streams = [StreamId(TASK, StreamKind.STDOUT, rank) for rank in range(20)]
        for turn in range(3):
            for stream in streams:
                rig.put(2 * turn, b"ab", stream)
        await rig.store.sync()
        assert all(rig.content(stream) == b"ababab" for stream in streams)
        assert sum(s.is_open for s in rig.store.job(JobId(7)).streams.values()) <= 4

    with_store(tmp_path, main)


def test_many_bytes_do_not_wait_for_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_rounds, "SYNC_EVERY_S", 3600.0)

    async def main(rig: Rig) -> None:
        for at in range(0, 1 << 20, 1 << 16):
            rig.put(at, bytes(1 << 16))
        await rig.acked.wait()
        assert rig.acks == [(OUT, 1 << 20)]

    with_store(tmp_path, main)


def test_logs_are_removed_also_if_they_are_evicted_and_loaded_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cache, "JOBS_KEPT", 1)
    begun, go_on = threading.Event(), threading.Event()

    def write_slowly(*given: Any) -> None:
        begun.set()
        go_on.wait(30)
        write_removed(*given)

    monkeypatch.setattr(store_module, "write_removed", write_slowly)

    async def main(rig: Rig) -> None:
        rig.put(0, b"abc")
        await rig.acked.wait()
        store = LogStore(rig.root, rig.changes, SystemClock())
        removing = asyncio.create_task(store.remove(JobId(7), "old"))
        await asyncio.to_thread(begun.wait, 30)
        store.job(JobId(8))
        await store.writer.call(store._jobs.evict)
        assert store._jobs.known(JobId(7)) is None
        assert store.job(JobId(7)).streams, "loaded anew, before the mark is there"
        go_on.set()
        await removing
        assert store.job(JobId(7)).removed is not None
        assert store.append(OUT, 3, memoryview(b"def"), 1.0, rig.synced) == 0
        assert rig.acks[-1] == (OUT, 6)
        assert [path.name for path in (rig.root / "7").iterdir()] == ["removed"]

    with_store(tmp_path, main)


def test_a_job_has_so_many_streams_of_other_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that has begun is stored whole."""
    monkeypatch.setattr(store_module, "_OTHER_STREAMS_MAX", 4)

    def stream(attempt: int, rank: int) -> StreamId:
        return StreamId(TaskId(f"7.{attempt}.0"), StreamKind.STDOUT, rank)

    async def main(rig: Rig) -> None:
        for attempt in (1, 2):
            for rank in range(3):
                assert rig.put(0, b"abc", stream(attempt, rank)) == 3
        with pytest.raises(NotWantedError, match="muster rerun"):
            rig.put(0, b"abc", stream(3, 0))
        assert rig.put(3, b"def", stream(2, 0)) == 3
        assert rig.put(0, b"abc", stream(2, 3)) == 3

    with_store(tmp_path, main)
