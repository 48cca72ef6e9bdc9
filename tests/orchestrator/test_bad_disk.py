"""A real coordinator on a disk that is slow, and on one that fails: what was promised stays so."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from tests.orchestrator.bad_disk import DISK
from tests.orchestrator.fake_agent import FakeAgent, connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, user_of

BEAT_S = 2.0
# Longer than an agent, and than the coordinator, waits for a word of the other.
COMMIT_S = 9.0
MODULE = "tests.orchestrator.bad_disk"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DISK, str(tmp_path / "disk"))
    return tmp_path / "disk"


def becomes(disk: Path, what: str) -> None:
    disk.write_text(what)


def is_well(disk: Path) -> None:
    disk.unlink()


async def beats_until(done: asyncio.Future[int], agent: FakeAgent) -> list[float]:
    """Send heartbeats as an agent does; which of them were answered before that was done."""
    number, answered = 0.0, list[float]()
    while True:
        number += 1.0
        await agent.say(Heartbeat(number))
        while await agent.hear() != HeartbeatAck(number):
            pass
        if done.done():
            return answered
        answered.append(number)
        await asyncio.wait([done], timeout=BEAT_S / 2)


def test_a_commit_of_seconds_cuts_off_no_node(tmp_path: Path, disk: Path) -> None:
    process = CoordinatorProcess(tmp_path, heartbeat_s=BEAT_S, module=MODULE)
    with process.start():

        async def main() -> None:
            async with user_of(process) as user, connect(process, "n1") as agent:
                await agent.hello()
                becomes(disk, f"slow {COMMIT_S}")
                job = asyncio.ensure_future(user.submit(workdir="/w"))
                answered = await beats_until(job, agent)
                is_well(disk)
                assert len(answered) >= 3
                assert (await user.get("/v1/nodes/n1"))["link"] == "connected"
                await user.cancel(await job)
                assert process.events("NodeDisconnected") == []

        asyncio.run(main())


def test_a_failed_fsync_ends_the_process_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    process = CoordinatorProcess(tmp_path, module=MODULE)
    with process.start():

        async def before() -> int:
            async with user_of(process) as user, connect(process, "n1") as agent:
                await agent.hello()
                known = await user.submit("known")
                becomes(disk, "fails")
                with pytest.raises((aiohttp.ClientError, AssertionError)):
                    await user.submit("unknown")
                return known

        known = asyncio.run(before())
        assert process.wait() == 1
        (event,) = process.events("coordinator_failed")
        assert "a commit failed (disk I/O error); nothing was acted on" in event["why"]
        is_well(disk)
        process.start()

        async def after() -> None:
            async with user_of(process) as user:
                assert [job["id"] for job in (await user.get("/v1/jobs"))["jobs"]] == [known]
                headers = {"Idempotency-Key": "known"}
                async with user.http.post("/v1/jobs", json=JOB, headers=headers) as answer:
                    assert (answer.status, (await answer.json())["id"]) == (200, known)

        asyncio.run(after())
