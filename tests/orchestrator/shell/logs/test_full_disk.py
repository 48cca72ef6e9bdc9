"""A log disk that takes no more: one stream is late and says so, nothing is lost."""

import asyncio
import os
import resource
from pathlib import Path

import pytest

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId, TaskId
from muster.protocol.log_channel import StreamId, StreamKind
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs import store as store_module
from orchestrator.shell.logs.index import IndexFile
from orchestrator.shell.logs.reader import Live, Source, live
from orchestrator.shell.logs.store import LogStore, log_key
from orchestrator.shell.logs.stream_file import LogStoreError, StreamFile

OUT = StreamId(TaskId("7.1.0"), StreamKind.STDOUT, 0)
ERR = StreamId(TaskId("7.1.0"), StreamKind.STDERR, 0)
JOB = JobId(7)


class Rig:
    def __init__(self, root: Path, free_bytes_min: int = 0) -> None:
        self.changes = ChangeCounters()
        self.store = LogStore(root, self.changes, SystemClock(), free_bytes_min=free_bytes_min)
        self.acks: list[tuple[StreamId, int]] = []

    def put(self, offset: int, data: bytes, stream: StreamId = OUT) -> int | None:
        return self.store.append(stream, offset, memoryview(data), 1.0, self.synced)

    def synced(self, stream: StreamId, offset: int) -> None:
        self.acks.append((stream, offset))

    def shown(self, stream: StreamId = OUT) -> bytes:
        """What a reader is given of the stream."""
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
    assert rig.changes.count(log_key(JOB)) > seen, "readers are told"
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


def test_what_cannot_be_synced_is_not_acknowledged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(store_module, "SYNC_AGAIN_S", 0.01)
        broken = asyncio.Event()
        works = [False]
        really = os.fdatasync

        def fdatasync(fd: int) -> None:
            if not works[0]:
                loop.call_soon_threadsafe(broken.set)
                raise OSError(5, "Input/output error")
            really(fd)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        loop = asyncio.get_running_loop()
        rig = Rig(tmp_path)
        syncing = loop.create_task(rig.store.run())
        rig.put(0, b"x")
        assert rig.store.end(OUT, 1, rig.synced)
        with pytest.raises(LogStoreError):
            await rig.store.end_task(OUT.task, 1)
        await broken.wait()
        assert rig.acks == []
        works[0] = True
        assert await rig.store.end_task(OUT.task, 1)
        assert (OUT, 1) in rig.acks
        syncing.cancel()
        rig.store.close()

    asyncio.run(asyncio.wait_for(main(), 30))


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
