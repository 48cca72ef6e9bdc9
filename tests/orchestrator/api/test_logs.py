"""Reading logs: history, tail, what comes live, and how a stream ends."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.protocol.ids import TaskId
from muster.protocol.logs import (
    EndStream,
    LogAck,
    StreamId,
    StreamKind,
    TaskLogsEnd,
    TaskLogsStored,
)
from tests.orchestrator.fake_agent import FakeAgent, FakeLogLink, connect, connect_logs
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of


class Scene:
    """Two nodes, a job on both, and their bulk connections."""

    def __init__(self, user: User, agents: list[FakeAgent], links: list[FakeLogLink]) -> None:
        self.user = user
        self.agents = agents
        self.links = links
        self.job = 0
        self.tasks: list[TaskId] = []
        self.sizes: dict[StreamId, int] = {}

    async def begin(self) -> None:
        self.job = await self.user.submit(nodes=2)
        self.tasks = [await agent.prepare() for agent in self.agents]
        for agent, task in zip(self.agents, self.tasks, strict=True):
            await agent.arrange(task)

    async def write(self, node: int, data: bytes, ts: float, kind: str = "stdout") -> None:
        """Deliver bytes of a node's one rank, up to their acknowledgement."""
        rank = node if kind in ("stdout", "stderr") else None
        stream = StreamId(self.tasks[node], StreamKind(kind), rank)
        at = self.sizes.get(stream, 0)
        await self.links[node].send(stream, at, data, ts)
        self.sizes[stream] = at + len(data)
        await self.links[node].hear_until(LogAck(stream, at + len(data)))

    async def finish(self) -> None:
        for agent, task in zip(self.agents, self.tasks, strict=True):
            await agent.finish(task)

    async def deliver(self, node: int) -> None:
        mine = [s for s in self.sizes if s.task == self.tasks[node]]
        for stream in mine:
            await self.links[node].say(EndStream(stream, self.sizes[stream]))
        await self.links[node].say(TaskLogsEnd(self.tasks[node], len(mine)))
        await self.links[node].hear_until(TaskLogsStored(self.tasks[node]))


def with_scene(coordinator: CoordinatorProcess, main: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(60),
            user_of(coordinator) as user,
            connect(coordinator, "n1") as one,
            connect(coordinator, "n2") as two,
        ):
            for agent in (one, two):
                await agent.hello()
            async with connect_logs(coordinator, "n1") as l1, connect_logs(coordinator, "n2") as l2:
                scene = Scene(user, [one, two], [l1, l2])
                await scene.begin()
                await main(scene)

    asyncio.run(run())


def texts(lines: list[Any]) -> list[str]:
    return [line["data"] for line in lines if "data" in line]


def test_history_is_in_the_order_of_time_and_can_be_chosen_from(
    coordinator: CoordinatorProcess,
) -> None:
    async def main(scene: Scene) -> None:
        await scene.write(0, b"third\n", 3.0)
        await scene.write(1, b"first\n", 1.0)
        await scene.write(1, b"oops\n", 2.0, "stderr")
        await scene.write(0, b"made ready\n", 0.5, "setup")
        logs, job = scene.user.logs, scene.job
        everything = await logs(job)
        assert texts(everything) == ["made ready\n", "first\n", "oops\n", "third\n"]
        assert everything[-1]["end"] is False
        assert everything[-1]["cursor"] == everything[-2]["cursor"]
        assert texts(await logs(job, "rank=1")) == ["first\n", "oops\n"]
        assert texts(await logs(job, "node=n1")) == ["made ready\n", "third\n"]
        assert texts(await logs(job, "stream=stderr,setup")) == ["made ready\n", "oops\n"]
        assert texts(await logs(job, "attempt=2")) == []
        assert texts(await logs(job, "tail=2")) == ["oops\n", "third\n"]
        assert texts(await logs(job, "tail=0")) == []
        for at, line in enumerate(everything[:-1]):
            rest = await logs(job, f"cursor={line['cursor']}")
            assert texts(rest) == texts(everything[at + 1 :])
        async with scene.user.http.get(f"/v1/jobs/{job}/logs?format=text&node=n2") as answer:
            assert await answer.text() == "first\noops\n"
        await scene.finish()

    with_scene(coordinator, main)


def test_bytes_that_are_no_text_arrive_as_they_were(coordinator: CoordinatorProcess) -> None:
    async def main(scene: Scene) -> None:
        await scene.write(0, b"\xff\x00\xfe", 1.0)
        (record, _) = await scene.user.logs(scene.job)
        assert "data" not in record
        assert base64.b64decode(record["data_b64"]) == b"\xff\x00\xfe"
        assert (record["offset"], record["len"], record["ts"]) == (0, 3, "1970-01-01T00:00:01Z")
        await scene.finish()

    with_scene(coordinator, main)


def test_a_follower_sees_what_comes_and_the_end_only_when_all_is_stored(
    coordinator: CoordinatorProcess,
) -> None:
    async def main(scene: Scene) -> None:
        await scene.write(0, b"before\n", 5.0)
        path = f"/v1/jobs/{scene.job}/logs?follow=true"
        async with scene.user.http.get(path) as answer:
            assert texts([json.loads(await answer.content.readline())]) == ["before\n"]
            await scene.write(1, b"while\n", 1.0)
            assert texts([json.loads(await answer.content.readline())]) == ["while\n"]
            await scene.finish()
            await scene.user.ended(scene.job)
            await scene.write(0, b"after its end\n", 6.0)
            assert texts([json.loads(await answer.content.readline())]) == ["after its end\n"]
            await scene.deliver(0)
            await scene.deliver(1)
            trailer = json.loads(await answer.content.readline())
            assert (trailer["end"], trailer["state"], trailer["exit_code"]) == (
                True,
                "SUCCEEDED",
                0,
            )
            assert "reason" not in trailer
            assert await answer.content.read() == b""

    with_scene(coordinator, main)


def test_a_node_that_delivers_nothing_is_not_waited_for_for_ever(
    coordinator: CoordinatorProcess,
) -> None:
    async def main(scene: Scene) -> None:
        await scene.write(0, b"x\n", 5.0)
        await scene.finish()
        await scene.deliver(0)
        *records, trailer = await scene.user.logs(scene.job, "follow=1")
        assert texts(records) == ["x\n"]
        assert trailer["end"] is True
        assert trailer["reason"] == "not all logs were delivered by n2"

    with_scene(coordinator, main)


@pytest.mark.parametrize("form", ["ndjson", "text"])
def test_a_restart_never_looks_like_the_end(tmp_path: Path, form: str) -> None:
    async def main(scene: Scene) -> None:
        await scene.write(0, b"x\n", 5.0)
        path = f"/v1/jobs/{scene.job}/logs?follow=1&format={form}"
        async with scene.user.http.get(path) as answer:
            first = await answer.content.readline()
            stopping = asyncio.create_task(asyncio.to_thread(coordinator.terminate))
            if form == "text":
                assert first == b"x\n"
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.content.read()
            else:
                trailer = json.loads(await answer.content.readline())
                assert trailer["end"] is False
                assert trailer["reason"] == "server restarting"
                assert trailer["cursor"] == json.loads(first)["cursor"]
                assert await answer.content.read() == b""
        assert await stopping == 0

    with CoordinatorProcess(tmp_path).start() as coordinator:
        with_scene(coordinator, main)
