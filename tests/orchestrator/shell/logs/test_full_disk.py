"""A log disk that takes no more: one stream is late and says so, nothing is lost."""

import asyncio
import os
import resource
import threading
from functools import partial
from pathlib import Path

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.log_channel import StreamId, StreamKind
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.index import RECORD_BYTES, IndexFile
from orchestrator.shell.logs.reader import Live, Source, live
from orchestrator.shell.logs.store import LogStore, log_key
from orchestrator.shell.logs.stream_file import LogStoreError, StreamFile, StreamMark

OUT = StreamId(TaskId("7.1.0"), StreamKind.STDOUT, 0)
ERR = StreamId(TaskId("7.1.0"), StreamKind.STDERR, 0)
JOB = JobId(7)


class Rig:
    def __init__(self, root: Path, free_bytes_min: int = 0) -> None:
        self.changes = ChangeCounters()
        self.store = LogStore(root, self.changes, SystemClock(), free_bytes_min=free_bytes_min)
        self.acks: list[tuple[StreamId, int | None]] = []

    def put(self, offset: int, data: bytes, stream: StreamId = OUT) -> int | None:
        return self.store.append(stream, offset, memoryview(data), 1.0, self.synced)

    def synced(self, stream: StreamId, offset: int | None) -> None:
        self.acks.append((stream, offset))

    def shown(self, stream: StreamId = OUT) -> bytes:
        """Return the part of the stream that a reader gets."""
        job = self.store.job(JOB)
        found = [
            Source(key, s.path, s.last_seq)
            for key, s in job.streams.items()
            if key.kind == stream.kind.value
        ]
        return b"".join(piece.data for piece in live(found, Live(0, 0), job.next_seq))

    def late(self) -> list[tuple[str, int]]:
        return [(key.kind, late.offset) for key, late in self.store.job(JOB).late.items()]


def failing(monkeypatch: pytest.MonkeyPatch, fails: dict[str, int]) -> None:
    """os.write that takes `fails[name]` more bytes of files of that name, then none."""
    really = os.write

    def write(fd: int, data: bytes | memoryview) -> int:
        left = fails.get(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        if left is None:
            return really(fd, data)
        if left == 0:
            raise OSError(28, "No space left on device")
        done = really(fd, data[:left])
        fails[Path(os.readlink(f"/proc/self/fd/{fd}")).name] = left - done
        return done

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("full", ["stdout.0", "stdout.0.idx"])
@pytest.mark.parametrize("left", [0, 1, 5])
def test_nothing_is_lost_or_doubled_by_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, left: int
) -> None:
    rig = Rig(tmp_path)
    rig.put(0, b"first\n")
    fails = {full: left}
    failing(monkeypatch, fails)
    seen = rig.changes.count(log_key(JOB))
    with pytest.raises(LogStoreError):
        rig.put(6, "sec€nd\n".encode())
    assert rig.changes.count(log_key(JOB)) > seen, "readers are woken"
    (late,) = rig.late()
    assert late[0] == "stdout"
    assert 6 <= late[1] <= 15
    rig.put(0, b"another stream\n", ERR)
    assert rig.shown(ERR) == b"another stream\n"
    fails.clear()
    size = rig.store.stream(OUT).size
    assert rig.put(size, ("first\nsec€nd\n".encode())[size:] + b"third\n")
    assert rig.late() == []
    assert rig.shown() == "first\nsec€nd\nthird\n".encode()
    entries = IndexFile(rig.store.stream(OUT).path).read(0, 99)
    others = IndexFile(rig.store.stream(ERR).path).read(0, 99)
    assert not {e.seq for e in entries} & {e.seq for e in others}, "an arrival's number is its own"
    rig.store.close()
    again = Rig(tmp_path)
    assert again.shown() == "first\nsec€nd\nthird\n".encode()
    again.store.close()


def test_some_room_is_left_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, free_bytes_min=1 << 20)
    free = [2 << 20]
    real = os.statvfs(tmp_path)

    def statvfs(_path: object) -> os.statvfs_result:
        values = list(real)
        values[0:5] = [1, 1, 1 << 40, free[0], free[0]]
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert rig.put(0, b"x" * 1000) == 1000
    free[0] = (1 << 20) + 10
    with pytest.raises(LogStoreError, match="1 MiB"):
        rig.put(1000, b"y" * 1000)
    assert rig.late() == [("stdout", 1000)]
    assert rig.put(0, b"x" * 1000) == 0, "what is there already needs no room"
    free[0] = 2 << 20
    assert rig.put(1000, b"y" * 1000) == 1000
    assert rig.late() == []
    rig.store.close()


class FailingDisk:
    """A disk that cannot sync the files of `bad`, as the kernel reports it: a write that failed is
    reported to the first fsync, and the next one succeeds without its bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: set[str] = set()
        self._really = {name: getattr(os, name) for name in ("fsync", "fdatasync")}
        for name in self._really:
            monkeypatch.setattr(os, name, partial(self._sync, name))

    def _sync(self, name: str, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if path in self.bad:
            raise OSError(5, "Input/output error")
        self._really[name](fd)


@pytest.mark.parametrize("bad", ["stdout.0", "stdout.0.idx"])
def test_bytes_whose_fsync_failed_are_wanted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    async def main() -> None:
        disk = FailingDisk(monkeypatch)
        rig = Rig(tmp_path)
        rig.put(0, b"on disk\n")
        await rig.store.sync()
        disk.bad = {bad}
        rig.put(8, b"dropped\n")
        assert rig.store.end(OUT, 16, rig.synced)
        await rig.store.sync()
        assert rig.acks == [(OUT, 8), (OUT, None)]
        assert rig.late() == [("stdout", 8)]
        disk.bad = set()
        await rig.store.sync()
        assert rig.acks == [(OUT, 8), (OUT, None)], "the next fsync proves nothing of those bytes"
        assert rig.store.size(OUT) == 8
        assert rig.shown() == b"on disk\n"
        rig.put(8, b"dropped\n")
        assert rig.late() == [("stdout", 8)], "not before it is on disk"
        assert rig.store.end(OUT, 16, rig.synced)
        await rig.store.sync()
        assert rig.acks[2:] == [(OUT, 16)]
        assert rig.late() == []
        assert rig.shown() == b"on disk\ndropped\n"
        assert rig.store.job(JOB).usage.job == 16 + 3 * RECORD_BYTES
        rig.store.close()

    asyncio.run(main())


@pytest.mark.parametrize("bad", ["stdout.0", "stdout.0.idx", "0"])
def test_a_file_that_cannot_be_synced_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    async def main() -> None:
        disk = FailingDisk(monkeypatch)
        disk.bad = {bad}
        rig = Rig(tmp_path)
        other = StreamId(TaskId("8.1.1"), StreamKind.STDOUT, 1)
        rig.put(0, b"x")
        rig.put(0, b"abc", other)
        assert rig.store.end(other, 3, rig.synced)
        running = asyncio.get_running_loop().create_task(rig.store.run())
        assert await rig.store.end_task(other.task, 1)
        assert sorted(rig.acks, key=str) == sorted([(OUT, None), (other, 3)], key=str)
        running.cancel()
        rig.store.close()

    asyncio.run(asyncio.wait_for(main(), 180))


def test_a_file_that_cannot_be_looked_at_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.put(0, b"x")
        rig.put(0, b"abc", ERR)
        really = StreamFile.mark

        def mark(stream: StreamFile) -> StreamMark:
            if stream.key.kind == "stdout":
                raise OSError(117, "Structure needs cleaning")
            return really(stream)

        monkeypatch.setattr(StreamFile, "mark", mark)
        await rig.store.sync()
        assert sorted(rig.acks, key=str) == sorted([(OUT, None), (ERR, 3)], key=str)
        assert rig.late() == [("stdout", 0)]
        rig.store.close()

    asyncio.run(main())


def test_a_task_whose_fsync_failed_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = FailingDisk(monkeypatch)
        disk.bad = {"stdout.0"}
        rig = Rig(tmp_path)
        running = asyncio.get_running_loop().create_task(rig.store.run())
        rig.put(0, b"x")
        assert rig.store.end(OUT, 1, rig.synced)
        assert not await rig.store.end_task(OUT.task, 1)
        assert rig.acks == [(OUT, None)]
        disk.bad = set()
        assert not await rig.store.end_task(OUT.task, 1), "the byte is missing"
        rig.put(0, b"x")
        assert rig.store.end(OUT, 1, rig.synced)
        assert await rig.store.end_task(OUT.task, 1)
        assert rig.acks[-1] == (OUT, 1)
        running.cancel()
        rig.store.close()

    asyncio.run(asyncio.wait_for(main(), 180))


def test_a_file_that_cannot_be_cut_either_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = FailingDisk(monkeypatch)
        rig = Rig(tmp_path)
        rig.put(0, b"abc")
        await rig.store.sync()
        rig.put(3, b"dropped")
        disk.bad = {"stdout.0"}
        really = os.ftruncate

        def ftruncate(fd: int, length: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "ftruncate", ftruncate)
        await rig.store.sync()
        assert rig.acks[1:] == [(OUT, None)]
        assert rig.store.size(OUT) == 3
        with pytest.raises(LogStoreError, match="Input/output error"):
            rig.put(3, b"def")
        monkeypatch.setattr(os, "ftruncate", really)
        disk.bad = set()
        assert rig.put(3, b"def") == 3
        await rig.store.sync()
        assert rig.acks[-1] == (OUT, 6)
        assert rig.shown() == b"abcdef"
        rig.store.close()

    asyncio.run(main())


def test_bytes_that_come_while_a_sync_fails_are_wanted_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        begun, go_on = threading.Event(), threading.Event()

        def fdatasync(_fd: int) -> None:
            begun.set()
            assert go_on.wait(30)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        rig = Rig(tmp_path)
        rig.put(0, b"abc")
        syncing = asyncio.get_running_loop().create_task(rig.store.sync())
        await asyncio.to_thread(begun.wait, 30)
        rig.put(3, b"def")
        go_on.set()
        await syncing
        assert rig.acks == [(OUT, None)]
        assert rig.store.size(OUT) == 0
        assert rig.store.stream(OUT).path.read_bytes() == b""
        await rig.store.sync()
        assert rig.acks == [(OUT, None)]
        rig.store.close()

    asyncio.run(main())


def test_a_limit_on_the_size_of_files_is_met_like_a_full_disk(tmp_path: Path) -> None:
    """In a process of its own: the limit is for all of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
            file = StreamFile(Rig(tmp_path).store._place(OUT)[1], tmp_path / "stdout.0")
            try:
                file.append(0, memoryview(b"x" * 20_000), 1.0, 1)
            except LogStoreError as error:
                os.write(writing, f"{file.size} {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert said == f"10000 {tmp_path}/stdout.0 cannot be written: File too large"
