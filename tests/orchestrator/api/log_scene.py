"""Two nodes, a job on both, and the bytes that a test lets them deliver."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import (
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


@asynccontextmanager
async def log_scene(coordinator: CoordinatorProcess) -> AsyncIterator[Scene]:
    async with (
        user_of(coordinator) as user,
        connect(coordinator, "n1") as one,
        connect(coordinator, "n2") as two,
    ):
        for agent in (one, two):
            await agent.hello()
        async with connect_logs(coordinator, "n1") as l1, connect_logs(coordinator, "n2") as l2:
            scene = Scene(user, [one, two], [l1, l2])
            await scene.begin()
            yield scene


def texts(lines: list[Any]) -> list[str]:
    return [line["data"] for line in lines if "data" in line]
