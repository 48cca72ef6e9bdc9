"""A coordinator whose descriptors run out: agents and short requests have the last ones."""

import asyncio
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of

LIMIT = 160


def lower(process: CoordinatorProcess, limit: int) -> None:
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, hard))


async def beat(agent: FakeAgent, number: float) -> None:
    """A heartbeat is answered, whatever else is said."""
    await agent.say(Heartbeat(number))
    while await agent.hear() != HeartbeatAck(number):
        pass


async def readiness(process: CoordinatorProcess) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(process.url) as http,
        http.get("/readyz") as answer,
    ):
        return answer.status, await answer.text()


async def ready(process: CoordinatorProcess) -> None:
    """Poll until the coordinator is ready: no event reports that descriptors are free again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                status, _ = await readiness(process)
            except aiohttp.ClientError:
                status = 0  # it was dropped
            if status == 200:
                return
            await asyncio.sleep(0.1)


async def follow(http: aiohttp.ClientSession, held: AsyncExitStack) -> aiohttp.ClientResponse:
    """A stream on a connection of its own."""
    return await held.enter_async_context(http.get("/v1/events", params={"follow": "true"}))


def test_streams_leave_the_last_descriptors_to_agents_and_short_requests(
    tmp_path: Path,
) -> None:
    with CoordinatorProcess(tmp_path).start() as process:

        async def main() -> None:
            async with (
                user_of(process) as user,
                connect(process, "n1") as agent,
                AsyncExitStack() as held,
            ):
                await agent.hello()
                job = await user.submit(workdir="/w")
                task = await agent.prepare()
                await agent.arrange(task)
                lower(process, LIMIT)
                many = await held.enter_async_context(
                    aiohttp.ClientSession(
                        process.url,
                        headers=process.headers(),
                        connector=aiohttp.TCPConnector(limit=0),
                    )
                )
                # Files that it reads meanwhile are closed again, and leave room for more.
                stream = await follow(many, held)
                while stream.status == 200 or (await readiness(process))[0] == 200:
                    stream = await follow(many, held)
                problem = await stream.json()
                assert problem["code"] == "no_descriptors"
                assert "LimitNOFILE" in problem["hint"]
                status, text = await readiness(process)
                assert (status, "file descriptors" in text) == (503, True)
                # Users can still submit and nodes can still join; nodes with running jobs notice
                # nothing.
                async with user_of(process) as late, connect(process, "n2") as other:
                    await other.hello()
                    await beat(other, 1.0)
                    await beat(agent, 1.0)
                    queued = await late.submit()
                    await late.cancel(job)
                    assert queued > job
                await crowd(process, agent)
                await agent.report(task, TaskState.CLEANED)
            await ready(process)
            async with user_of(process) as user:
                assert (await user.ended(job))[0] == "CANCELLED"
                async with user.http.get("/v1/events", params={"follow": "true"}) as stream:
                    assert stream.status == 200

        asyncio.run(main())
        for failure in ("coordinator_failed", "task_failed", "request_failed"):
            assert process.events(failure) == []
        assert process.logged("descriptors_short")


async def crowd(process: CoordinatorProcess, agent: FakeAgent) -> None:
    """More connections than there are descriptors at all: they are dropped or not even taken."""
    async with AsyncExitStack() as held:
        for number in range(LIMIT):
            _, writer = await asyncio.open_connection("127.0.0.1", process.port)
            held.callback(writer.close)
            if number % 40 == 0:
                await beat(agent, 2.0 + number)
        await beat(agent, 1000.0)
