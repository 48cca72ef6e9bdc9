"""A job from submit to its end, over real sockets, by agents that a test plays."""

import asyncio
from pathlib import Path

from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import (
    EndStream,
    OpenStream,
    StreamAt,
    StreamId,
    StreamKind,
    TaskLogsEnd,
    TaskLogsStored,
)
from muster.protocol.outcome import ExitStatus
from tests.orchestrator.fake_agent import FakeAgent, connect, connect_logs
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of


async def run_gang(agents: list[FakeAgent], status: ExitStatus) -> list[TaskId]:
    tasks = [await agent.prepare() for agent in agents]
    for agent, task in zip(agents, tasks, strict=True):
        await agent.arrange(task)
    for agent, task in zip(agents, tasks, strict=True):
        await agent.finish(task, status)
    return tasks


async def deliver(coordinator: CoordinatorProcess, node: str, task: TaskId, data: bytes) -> None:
    stream = StreamId(task, StreamKind.STDOUT, int(task.rpartition(".")[2]))
    async with connect_logs(coordinator, node) as link:
        await link.say(OpenStream(stream))
        assert await link.hear() == StreamAt(stream, 0)
        await link.send(stream, 0, data)
        await link.say(EndStream(stream, len(data)))
        await link.say(TaskLogsEnd(task, 1))
        await link.hear_until(TaskLogsStored(task))


def test_a_gang_runs_to_its_end_and_its_logs_are_served(tmp_path: Path) -> None:
    async def main(coordinator: CoordinatorProcess) -> None:
        async with (
            user_of(coordinator) as user,
            connect(coordinator, "n1") as one,
            connect(coordinator, "n2") as two,
        ):
            await one.hello()
            await two.hello()
            job = await user.submit(nodes=2)
            follower = asyncio.create_task(user.logs(job, "follow=1"))
            tasks = await run_gang([one, two], ExitStatus(code=0))
            assert await user.ended(job) == ("SUCCEEDED", 0)
            for agent, task in zip((one, two), tasks, strict=True):
                await deliver(coordinator, agent.name, task, f"hello from {agent.name}\n".encode())
            *records, trailer = await follower
            assert (trailer["end"], trailer["exit_code"]) == (True, 0)
            assert {(r["node"], r["rank"], r["data"]) for r in records} == {
                ("n1", 0, "hello from n1\n"),
                ("n2", 1, "hello from n2\n"),
            }

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main(coordinator))
        assert coordinator.terminate() == 0


def test_the_first_failing_rank_gives_the_exit_code(tmp_path: Path) -> None:
    async def main(coordinator: CoordinatorProcess) -> None:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            job = await user.submit()
            await run_gang([agent], ExitStatus(code=7))
            assert await user.ended(job) == ("FAILED", 7)

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main(coordinator))
