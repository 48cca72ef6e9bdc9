"""Log bytes from files to a coordinator over real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.core.shim_protocol import ShimStream
from agent.link.dialer import Dialer
from agent.logs import shipper as module
from agent.logs.offsets import WINDOW_BYTES
from agent.logs.shipper import LogShipper
from muster.daemon.clock import SystemClock
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.log_channel import StreamId, StreamKind
from tests.agent.coordinator import DEADLINE_S, TOKEN, Coordinator
from tests.descriptors import descriptors_left, open_under

TASK = TaskId("3.1.0")
OTHER = TaskId("5.1.0")
OUT = StreamId(TASK, StreamKind.STDOUT, 0)
ERR = StreamId(TASK, StreamKind.STDERR, 0)
STREAMS = (
    ShimStream("stdout", "logs/rank-0.stdout", 0),
    ShimStream("stderr", "logs/rank-0.stderr", 0),
)
# Writes bytes of every value in pieces of any length.
WRITER = """
import random, sys, time
seed, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
data = random.Random(seed).randbytes(size)
with open(path, "ab", buffering=0) as file:
    at = 0
    while at < size:
        at += file.write(data[at : at + random.randrange(1, 100_000)])
        time.sleep(0.001)
"""


class Stored:
    """The tasks of which the shipper has said that all is stored."""

    def __init__(self) -> None:
        self._tasks: asyncio.Queue[TaskId] = asyncio.Queue()

    def note(self, task: TaskId) -> None:
        self._tasks.put_nowait(task)

    async def take(self, count: int) -> set[TaskId]:
        async with asyncio.timeout(DEADLINE_S):
            return {await self._tasks.get() for _ in range(count)}


@asynccontextmanager
async def shipping(
    folder: Path, coordinator: Coordinator
) -> AsyncIterator[tuple[LogShipper, Stored]]:
    (folder / "logs").mkdir(exist_ok=True)
    token = folder / "token"
    token.write_text(TOKEN)
    stored = Stored()
    async with Dialer(coordinator.url, token, None) as dialer:
        it = LogShipper(dialer, SystemClock(), NodeName("n1"), "id", stored.note)
        it.welcomed(5.0)
        run = asyncio.get_running_loop().create_task(it.run())
        try:
            yield it, stored
        finally:
            run.cancel()
            (end,) = await asyncio.gather(run, return_exceptions=True)
            assert isinstance(end, asyncio.CancelledError), end


async def test_five_megabytes_arrive_exactly_across_two_cuts(tmp_path: Path) -> None:
    size = 5_000_000
    async with Coordinator() as coordinator:
        coordinator.logs.cut_at = [1_000_000, 3_000_000]
        async with shipping(tmp_path, coordinator) as (it, stored):
            it.follow(TASK, tmp_path, STREAMS)
            path = tmp_path / "logs/rank-0.stdout"
            (tmp_path / "logs/rank-0.stderr").write_bytes(b"x")
            command = [sys.executable, "-c", WRITER, "11", str(size), str(path)]
            await asyncio.to_thread(subprocess.run, command, check=True, timeout=DEADLINE_S)
            it.complete(TASK)
            await coordinator.logs.until(lambda store: TASK in store.tasks)
            assert coordinator.logs.data[OUT] == random.Random(11).randbytes(size)
            assert coordinator.logs.data[ERR] == b"x"
            assert coordinator.log_connections == 3
            assert {hello.node for hello in coordinator.logs.hellos} == {"n1"}
            assert await stored.take(1) == {TASK}


async def test_a_byte_is_sent_when_it_is_written_without_looking_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 1e6)
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        path = tmp_path / "logs/rank-0.stdout"
        path.touch()
        it.follow(TASK, tmp_path, STREAMS[:1])
        text = b""
        with path.open("ab", buffering=0) as file:
            for number in range(50):
                line = b"%d\n" % number
                file.write(line)
                text += line
                wanted = bytes(text)
                await coordinator.logs.until(lambda it, now=wanted: it.data.get(OUT) == now)  # type: ignore[misc]
                # A round trip, so that nothing but the next write wakes the shipper.
                it.complete(TaskId(f"{number + 100}.1.0"), reported=False)
                await stored.take(1)


async def test_without_inotify_files_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(module, "Inotify", refuse)
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, _):
        it.follow(TASK, tmp_path, STREAMS[:1])
        path = tmp_path / "logs/rank-0.stdout"
        for text in (b"a", b"ab", b"abc"):
            path.write_bytes(text)
            await coordinator.logs.until(lambda it, now=text: it.data.get(OUT) == now)  # type: ignore[misc]


async def test_many_files_without_inotify_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(module, "Inotify", refuse)
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    monkeypatch.setattr(module, "_POLLED_MAX", 2)
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, _):
        named = [ShimStream("stdout", f"logs/rank-{rank}.stdout", rank) for rank in range(5)]
        it.follow(TASK, tmp_path, tuple(named))
        for stream in named:
            (tmp_path / stream.path).write_text("x")
        await coordinator.logs.until(lambda store: store.bytes == len(named))


async def test_a_file_is_followed_whatever_its_name_becomes(tmp_path: Path) -> None:
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, _):
        path = tmp_path / "logs/rank-0.stdout"
        with path.open("ab", buffering=0) as file:
            file.write(b"one ")
            it.follow(TASK, tmp_path, STREAMS[:1])
            await coordinator.logs.until(lambda store: store.data.get(OUT) == bytearray(b"one "))
            path.rename(tmp_path / "moved")
            path.write_bytes(b"another file, longer than the first")
            file.write(b"two")
            await coordinator.logs.until(lambda store: store.data.get(OUT) == bytearray(b"one two"))
            it.complete(TASK)
            await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert coordinator.logs.data[OUT] == b"one two"


async def test_a_hole_is_sent_as_its_length_and_what_follows_it_at_its_offset(
    tmp_path: Path,
) -> None:
    size = 100 << 30
    async with (
        Coordinator() as coordinator,
        shipping(tmp_path, coordinator) as (it, stored),
    ):
        path = tmp_path / "logs/rank-0.stdout"
        path.write_bytes(b"first\n")
        it.follow(TASK, tmp_path, STREAMS[:1])
        await coordinator.logs.until(lambda it: it.data.get(OUT) == bytearray(b"first\n"))
        os.truncate(path, size)
        await coordinator.logs.until(lambda it: OUT in it.holes)
        coordinator.drop_all()  # it is not sent again, nor asked for
        with path.open("ab") as file:
            file.write(b"last\n")
        it.complete(TASK)
        assert await stored.take(1) == {TASK}
        assert coordinator.logs.ended == {OUT: size + 5}
        (hole,) = coordinator.logs.holes[OUT]
        assert sum(hole) == size, "it reaches to the end of the file"
        data = coordinator.logs.data[OUT]
        assert data.replace(b"\0", b"") == b"first\nlast\n"
        assert len(data) <= 2 * (64 << 10), "zeros only of the blocks that are written"


async def test_a_link_in_place_of_a_log_is_shipped_as_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        (tmp_path / "logs/rank-0.stdout").symlink_to(secret)
        (tmp_path / "logs/rank-0.stderr").write_text("mine")
        it.follow(TASK, tmp_path, STREAMS)
        it.complete(TASK)
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert coordinator.logs.data == {ERR: b"mine"}
        assert await stored.take(1) == {TASK}


async def test_a_task_without_logs_and_one_without_files_end_too(tmp_path: Path) -> None:
    other = TaskId("4.1.0")
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        it.complete(other, reported=False)
        it.follow(TASK, tmp_path, STREAMS)
        it.complete(TASK, reported=False)
        await coordinator.logs.until(lambda store: len(store.tasks) == 2)
        assert coordinator.logs.tasks == {other: 0, TASK: 0}
        assert await stored.take(2) == {TASK, other}


async def test_a_task_has_no_more_streams_than_the_coordinator_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAMS_PER_TASK_MAX", 3)
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        named = [ShimStream("stdout", f"logs/rank-{rank}.stdout", rank) for rank in range(6)]
        for stream in named:
            (tmp_path / stream.path).write_text("x")
        for count in (2, 6, 6):  # a status names them all each time
            it.follow(TASK, tmp_path, tuple(named[:count]))
        it.complete(TASK)
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert {stream.rank for stream in coordinator.logs.data} == {0, 1, 2}
        assert await stored.take(1) == {TASK}
        it.drop(TASK)
        it.follow(OTHER, tmp_path, tuple(named[:1]))
        await coordinator.logs.until(lambda it: StreamId(OTHER, StreamKind.STDOUT, 0) in it.data)


async def test_a_stream_that_is_not_wanted_is_not_offered_again_and_its_task_ends(
    tmp_path: Path,
) -> None:
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        coordinator.logs.not_wanted = {ERR}
        for name in ("stdout", "stderr"):
            (tmp_path / f"logs/rank-0.{name}").write_text("x")
        it.follow(TASK, tmp_path, STREAMS)
        await coordinator.logs.until(
            lambda it: it.offered[ERR] == 1 and bytes(it.data.get(OUT, b"")) == b"x"
        )
        coordinator.drop_all()
        await coordinator.logs.until(lambda it: it.offered[OUT] == 2)
        it.complete(TASK)
        await coordinator.logs.until(lambda it: TASK in it.tasks)
        assert coordinator.logs.tasks == {TASK: 1}
        assert coordinator.logs.offered[ERR] == 1
        assert await stored.take(1) == {TASK}


async def test_a_file_without_a_byte_is_never_spoken_of(tmp_path: Path) -> None:
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        for name in ("stdout", "stderr"):
            (tmp_path / f"logs/rank-0.{name}").touch()
        it.follow(TASK, tmp_path, STREAMS)
        (tmp_path / "logs/rank-0.stderr").write_text("late")
        it.complete(TASK)
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert coordinator.logs.data == {ERR: b"late"}
        assert coordinator.logs.tasks == {TASK: 1}
        assert await stored.take(1) == {TASK}


async def test_hundreds_of_small_tasks_share_a_connection(tmp_path: Path) -> None:
    async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, stored):
        tasks = [TaskId(f"{number}.1.0") for number in range(1, 301)]
        for task in tasks:
            (tmp_path / task / "logs").mkdir(parents=True)
            (tmp_path / task / "logs/rank-0.stdout").write_text(task)
            it.follow(task, tmp_path / task, STREAMS)
            it.complete(task)
        await coordinator.logs.until(lambda store: len(store.tasks) == 300)
        for task in tasks:
            stream = StreamId(task, StreamKind.STDOUT, 0)
            assert coordinator.logs.data[stream] == task.encode()
        assert coordinator.log_connections == 1
        assert await stored.take(300) == set(tasks)
        for task in tasks:
            it.drop(task)
        assert open_under(tmp_path) == []


def test_unacknowledged_bytes_stay_within_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Coordinator() as coordinator, shipping(tmp_path, coordinator) as (it, _):
            received = 0
            enough = asyncio.Event()

            async def swallow(_socket: object, _chunk: object, data: memoryview) -> None:
                nonlocal received
                received += len(data)
                if received >= WINDOW_BYTES:
                    enough.set()

            monkeypatch.setattr(coordinator.logs, "_take", swallow)
            (tmp_path / "logs/rank-0.stdout").write_bytes(bytes(3 * WINDOW_BYTES))
            (tmp_path / "logs/rank-0.stderr").write_bytes(b"y" * 7)
            it.follow(TASK, tmp_path, STREAMS)
            async with asyncio.timeout(DEADLINE_S):
                await enough.wait()
            # A round trip, after which anything that was on its way is here.
            it.complete(TaskId("9.9.9"), reported=False)
            await coordinator.logs.until(lambda store: bool(store.tasks))
            assert received == WINDOW_BYTES + 7

    asyncio.run(story())


async def test_a_task_without_a_byte_costs_no_message_where_its_report_says_so(
    tmp_path: Path,
) -> None:
    async with (
        Coordinator() as coordinator,
        shipping(tmp_path, coordinator) as (it, stored),
    ):
        silent, loud = TaskId("3.1.1"), TASK
        for task in (silent, loud):
            folder = tmp_path / task
            (folder / "logs").mkdir(parents=True)
            for stream in STREAMS:
                (folder / stream.path).touch()
            it.follow(task, folder, STREAMS)
        (tmp_path / loud / "logs/rank-0.stderr").write_bytes(b"x")
        assert it.complete(silent)
        assert not it.complete(loud)
        # Reports keep their order, so an end of the first task would have arrived first.
        assert await stored.take(1) == {loud}
        assert coordinator.logs.tasks == {loud: 1}


async def test_the_reported_end_of_a_task_stays_whatever_its_shim_reports_later(
    tmp_path: Path,
) -> None:
    silent, announced = TaskId("3.1.0"), TaskId("3.1.1")
    async with (
        Coordinator() as coordinator,
        shipping(tmp_path, coordinator) as (it, stored),
    ):
        for _ in range(2):
            assert it.complete(silent)
            assert not it.complete(announced, reported=False)
        assert not it.complete(announced)
        assert await stored.take(1) == {announced}
        assert coordinator.logs.tasks == {announced: 0}


async def test_a_log_that_cannot_be_opened_for_want_of_descriptors_is_read_later(
    tmp_path: Path,
) -> None:
    async with (
        Coordinator() as coordinator,
        shipping(tmp_path, coordinator) as (it, stored),
    ):
        silent, loud, first = TaskId("3.1.1"), TASK, TaskId("3.1.2")
        for task, text in ((silent, b""), (loud, b"last words"), (first, b"x")):
            folder = tmp_path / task
            (folder / "logs").mkdir(parents=True)
            for stream in STREAMS:
                (folder / stream.path).write_bytes(text)
        # So that there is a connection: none can be made meanwhile.
        it.follow(first, tmp_path / first, STREAMS)
        assert not it.complete(first)
        assert await stored.take(1) == {first}
        with descriptors_left():
            for task in (silent, loud):
                it.follow(task, tmp_path / task, STREAMS)
                # It is not known yet: a task without output may be removed.
                assert not it.complete(task)
        assert await stored.take(2) == {silent, loud}
        assert coordinator.logs.data[OUT] == coordinator.logs.data[ERR] == b"last words"
