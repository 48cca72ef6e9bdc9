"""The bulk connection: what an agent is asked for, and that it delivers for its own node alone."""

import asyncio
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web

from muster.daemon.clock import SystemClock
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.log_channel import (
    EndStream,
    Hole,
    LogAck,
    NotWanted,
    OpenStream,
    StreamAt,
    StreamId,
    StreamKind,
    TaskLogsEnd,
    TaskLogsStored,
    streams_max,
)
from muster.protocol.states import TaskState
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs import ingest
from orchestrator.shell.logs.connection import LogConnection
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError
from tests.orchestrator.fake_agent import DEADLINE_S, connect, connect_logs, prepared
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of


async def place_job(coordinator: CoordinatorProcess, node: str) -> TaskId:
    """A job on that node, its attempt still being prepared."""
    async with user_of(coordinator) as user, connect(coordinator, node) as agent:
        await agent.hello()
        await user.submit(placement={"include": [node]})
        task = await agent.prepare()
        await agent.report(task, TaskState.PREPARED, prepared=prepared())
        return task


def out(task: TaskId, rank: int = 0) -> StreamId:
    return StreamId(task, StreamKind.STDOUT, rank)


def test_bytes_are_acknowledged_once_and_resumed_after_a_restart(tmp_path: Path) -> None:
    async def first() -> TaskId:
        task = await place_job(coordinator, "n1")
        async with connect_logs(coordinator, "n1") as link:
            await link.say(OpenStream(out(task)))
            assert await link.hear() == StreamAt(out(task), 0)
            await link.send(out(task), 0, b"abc")
            assert await link.hear() == LogAck(out(task), 3)
            await link.send(out(task), 3, b"de")
            coordinator.kill()
        return task

    async def second(task: TaskId) -> None:
        async with connect_logs(coordinator, "n1") as link:
            await link.say(OpenStream(out(task)))
            at = await link.hear()
            assert isinstance(at, StreamAt)
            assert at.offset in (3, 5), "what was acknowledged is there"
            await link.send(out(task), 1, b"bcdef\n")
            await link.say(EndStream(out(task), 7))
            await link.say(TaskLogsEnd(task, 1))
            heard = await link.hear_until(TaskLogsStored(task))
            assert LogAck(out(task), 7) in heard
        async with user_of(coordinator) as user:
            *records, trailer = await user.logs(1, "stream=stdout")
            assert "".join(r["data"] for r in records) == "abcdef\n"
            assert trailer["end"] is False, "the job itself goes on"

    with CoordinatorProcess(tmp_path).start() as coordinator:
        task = asyncio.run(first())
        coordinator.start()
        asyncio.run(second(task))


def test_a_gap_is_asked_for_once(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        task = await place_job(coordinator, "g1")
        async with connect_logs(coordinator, "g1") as link:
            await link.send(out(task), 0, b"abc")
            await link.send(out(task), 5, b"fgh")
            await link.send(out(task), 8, b"ijk")
            await link.say(EndStream(out(task), 11))
            await link.say(OpenStream(out(task, 1)))
            heard = await link.hear_until(StreamAt(out(task, 1), 0))
            assert [c for c in heard if isinstance(c, StreamAt)] == [
                StreamAt(out(task), 3),
                StreamAt(out(task, 1), 0),
            ]
            await link.send(out(task), 3, b"defghijk")
            await link.say(EndStream(out(task), 11))
            await link.hear_until(LogAck(out(task), 11))

    asyncio.run(main())


def test_nobody_delivers_logs_of_anothers_task(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        task = await place_job(coordinator, "v1")
        await place_job(coordinator, "v2")
        async with connect_logs(coordinator, "v2") as link:
            for name in (task, TaskId("999.1.0")):
                await link.say(OpenStream(out(name)))
                await link.send(out(name), 0, b"forged\n")
                await link.say(Hole(out(name), 7, 2, 0.0))
                await link.say(EndStream(out(name), 9))
                await link.say(TaskLogsEnd(name, 1))
            await link.say(OpenStream(out(TaskId("not a task"))))
            async with asyncio.timeout(DEADLINE_S):
                message = await link.socket.receive()
            assert message.type is aiohttp.WSMsgType.CLOSE, message
            assert "not a task id" in (message.extra or "")
        async with user_of(coordinator) as user:
            job = int(task.partition(".")[0])
            assert [line for line in await user.logs(job) if "data" in line] == []

    asyncio.run(main())


@pytest.mark.parametrize("frame", ["rubbish", b"", b"\0\0\0\xff", b"\0\0\0\2{}", '{"type":"open"}'])
def test_an_invalid_message_ends_the_connection(
    coordinator: CoordinatorProcess, frame: str | bytes
) -> None:
    async def main() -> None:
        async with connect(coordinator, "r1") as agent:
            await agent.hello()
            async with connect_logs(coordinator, "r1") as link:
                if isinstance(frame, str):
                    await link.socket.send_str(frame)
                else:
                    await link.socket.send_bytes(frame)
                async with asyncio.timeout(DEADLINE_S):
                    message = await link.socket.receive()
                assert message.type is aiohttp.WSMsgType.CLOSE, message

    asyncio.run(main())


def test_a_hello_may_come_before_the_node_is_registered(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        async with connect_logs(coordinator, "late") as link, connect(coordinator, "late") as agent:
            await agent.hello()
            task = await _task_of(coordinator, agent.name)
            await link.say(OpenStream(out(task)))
            assert await link.hear() == StreamAt(out(task), 0)

    async def _task_of(coordinator: CoordinatorProcess, node: NodeName) -> TaskId:
        async with user_of(coordinator) as user:
            job = await user.submit(placement={"include": [node]})
            return TaskId(f"{job}.1.0")

    asyncio.run(main())


def test_a_hello_of_another_agent_is_not_taken(coordinator: CoordinatorProcess) -> None:
    async def main() -> None:
        async with connect(coordinator, "own") as agent:
            await agent.hello()
            async with (
                aiohttp.ClientSession(headers=coordinator.headers(coordinator.join)) as session,
                session.ws_connect(f"{coordinator.url}/v1/agent/logs") as socket,
            ):
                await socket.send_str('{"type":"log_hello","node":"own","agent_id":"thief"}')
                async with asyncio.timeout(DEADLINE_S):
                    message = await socket.receive()
                assert message.type is aiohttp.WSMsgType.CLOSE, message

    asyncio.run(main())


def test_streams_beyond_the_plan_are_refused_once_and_the_task_ends(
    coordinator: CoordinatorProcess,
) -> None:
    async def main() -> None:
        task = await place_job(coordinator, "s1")
        allowed = streams_max(1)
        names = [out(task, rank) for rank in range(2 * allowed)]
        for _ in range(2):  # an agent that connects anew offers them again
            async with connect_logs(coordinator, "s1") as link:
                for name in names:
                    await link.say(OpenStream(name))
                heard = [await link.hear() for _ in names]
                assert heard[:allowed] == [StreamAt(name, 0) for name in names[:allowed]]
                refused = [command for command in heard if isinstance(command, NotWanted)]
                assert [command.stream for command in refused] == names[allowed:]
        async with connect_logs(coordinator, "s1") as link:
            for name in names[:allowed]:
                await link.say(EndStream(name, 0))
            await link.say(TaskLogsEnd(task, allowed))
            heard = await link.hear_until(TaskLogsStored(task))
            assert not [command for command in heard if isinstance(command, NotWanted)]

    asyncio.run(main())


def test_held_back_bytes_are_requested_again_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones would be so on a disk that stays full."""
    monkeypatch.setattr(ingest, "AGAIN_MAX", 2)
    held = [out(TaskId("1.1.0"), rank) for rank in range(5)]

    async def main() -> None:
        asked: list[StreamId] = []

        class Full:
            def size(self, name: StreamId) -> int:
                raise LogStoreError("the disk is full")

            def has_room(self, name: StreamId) -> bool:
                asked.append(name)
                return False

        it = ingest.LogIngest(
            TaskOwner("test"),
            cast("LogStore", Full()),
            cast("Coordinator", None),
            connections_max=1,
        )
        agent = LogConnection(cast("web.WebSocketResponse", None), NodeName("n"))
        for name in held:
            it._ask(agent, name)
        for _ in range(5):
            it._ask_again(agent)
        if agent.again is not None:
            agent.again.cancel()
        assert asked == [*held, *held], "two a time, those that waited longest first"
        assert agent.holds[held[0].task] == len(held)

    asyncio.run(main())


def test_bytes_whose_fsync_failed_are_asked_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        store = LogStore(tmp_path, ChangeCounters(), SystemClock())
        it = ingest.LogIngest(
            TaskOwner("test"), store, cast("Coordinator", None), connections_max=1
        )
        agent, gone = (
            LogConnection(cast("web.WebSocketResponse", None), NodeName(name)) for name in "ab"
        )
        gone.broken = True
        name = out(TaskId("1.1.0"))
        it._synced(agent, name, 3)
        for connection in (agent, gone):
            it._synced(connection, name, None)
        assert agent.acks == {name: 3}
        assert list(agent.held) == [name], "its bytes in flight are not taken"
        assert not gone.held
        assert gone.again is None
        assert agent.again is not None
        agent.again.cancel()
        agent.again = None
        it._ask_again(agent)
        assert agent.others == [StreamAt(name, 0)]
        assert not agent.held
        assert agent.again is None

    asyncio.run(main())


def test_a_stream_that_cannot_be_stored_is_asked_for_again_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        task = await place_job(coordinator, "f1")
        async with connect_logs(coordinator, "f1") as link:
            await link.send(out(task), 0, b"abc")
            await link.hear_until(LogAck(out(task), 3))
            folder = tmp_path / "state/logs/1/1/0"
            (folder / "stdout.1.idx").mkdir()  # no file can be made there, not even by root
            await link.send(out(task, 1), 0, b"x" * 10)
            await link.send(out(task, 1), 10, b"y" * 10)
            await link.send(out(task), 3, b"def")
            await link.hear_until(LogAck(out(task), 6))
            (folder / "stdout.1.idx").rmdir()
            await link.hear_until(StreamAt(out(task, 1), 0))
            await link.send(out(task, 1), 0, b"x" * 10 + b"y" * 10)
            await link.hear_until(LogAck(out(task, 1), 20))
            await link.say(EndStream(out(task), 6))
            await link.say(EndStream(out(task, 1), 20))
            await link.say(TaskLogsEnd(task, 2))
            await link.hear_until(TaskLogsStored(task))
        assert len(coordinator.logged("log_store_failed")) == 1
        assert len(coordinator.logged("log_store_recovered")) == 1

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main())
