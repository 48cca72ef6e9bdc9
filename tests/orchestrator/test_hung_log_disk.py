"""A disk of job logs that does not answer holds up log streams and nothing else."""

import asyncio
from pathlib import Path

import pytest

from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from muster.protocol.link.log_channel import (
    EndStream,
    LogAck,
    OpenStream,
    StreamAt,
    TaskLogsEnd,
    TaskLogsStored,
)
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, FakeLogLink, connect, connect_logs
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.shell.logs.test_ingest import out
from tests.orchestrator.user import User, user_of
from tests.small_disk import disk_that_freezes, frozen

pytestmark = pytest.mark.root

# A frozen disk answers nobody at all, so the length does not matter.
ANSWER_S = 60.0
TEXT = b"".join(b"step %d\n" % number for number in range(100))


async def all_is_well(agent: FakeAgent, user: User, number: float) -> None:
    """The API answers soon, and so does a heartbeat."""
    async with asyncio.timeout(ANSWER_S), user.http.get("/healthz") as answer:
        assert answer.status == 200
    async with asyncio.timeout(ANSWER_S):
        await agent.say(Heartbeat(number))
        while await agent.hear() != HeartbeatAck(number):
            pass


async def deliver(link: FakeLogLink, answer: LogAck) -> None:
    """Send what is asked for, until it is acknowledged."""
    while (heard := await link.hear()) != answer:
        if isinstance(heard, StreamAt):
            await link.send(answer.stream, heard.offset, TEXT[heard.offset :])


def test_a_hung_log_disk_holds_up_log_streams_only(tmp_path: Path) -> None:
    async def main(disk: Path) -> None:
        async with (
            user_of(coordinator) as user,
            connect(coordinator, "n1") as agent,
            connect_logs(coordinator, "n1") as link,
        ):
            await agent.hello()
            await user.submit(placement={"include": ["n1"]})
            task = await agent.prepare()
            one, other = out(task), out(task, 1)
            await link.say(OpenStream(one))
            await link.hear_until(StreamAt(one, 0))
            await link.send(one, 0, TEXT[:10])
            await link.hear_until(LogAck(one, 10))
            with frozen(disk):
                await link.send(one, 10, TEXT[10:20])
                await link.send(other, 0, TEXT[:20])
                number = 0.0
                async with asyncio.timeout(DEADLINE_S):
                    while not coordinator.events("log_disk_unanswered"):
                        number += 1
                        await all_is_well(agent, user, number)
                await link.send(one, 20, TEXT[20:30])
                await link.say(EndStream(other, 20))
                await link.say(TaskLogsEnd(task, 2))
                await all_is_well(agent, user, number + 1)
                async with user.http.get("/v1/jobs/1/logs") as answer:
                    assert answer.status == 503
                    assert "does not answer" in await answer.text()
                async with user.http.get("/metrics") as answer:
                    assert "muster_log_disk_unanswered 1" in await answer.text()
                assert await user.submit() == 2
            await deliver(link, LogAck(one, len(TEXT)))
            await link.send(other, 20, TEXT[20:])
            await link.say(OpenStream(other))
            await deliver(link, LogAck(other, len(TEXT)))
            for stream in (one, other):
                await link.say(EndStream(stream, len(TEXT)))
            await link.say(TaskLogsEnd(task, 2))
            await link.hear_until(TaskLogsStored(task))
            for rank in range(2):
                lines = await user.logs(1, f"rank={rank}")
                assert "".join(line.get("data", "") for line in lines).encode() == TEXT
        assert len(coordinator.logged("log_disk_unanswered")) == 1
        assert len(coordinator.logged("log_disk_answers")) == 1

    with disk_that_freezes(tmp_path / "disk", 16 << 20) as disk:
        logs = {"dir": str(disk / "logs"), "free_bytes_min": 0}
        with CoordinatorProcess(tmp_path, job_logs=logs).start() as coordinator:
            asyncio.run(main(disk))
