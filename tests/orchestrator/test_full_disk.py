"""A coordinator whose disk is full: no new work, all else as ever, and by itself well again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, User, user_of
from tests.small_disk import fill, small_disk

pytestmark = pytest.mark.root


@pytest.fixture
def full(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        process = CoordinatorProcess(
            tmp_path, state_dir=str(disk / "state"), limits={"disk_reserve_bytes": 2 << 20}
        )
        with process.start():
            yield process


async def until(user: User, status: int) -> dict[str, Any]:
    """Submit until the answer is `status`: no event reports that a disk has become full."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with user.http.post("/v1/jobs", json=JOB) as answer:
                said: dict[str, Any] = await answer.json()
                if answer.status == status:
                    return said
                assert answer.status in (201, 507), said
            await asyncio.sleep(0.1)


async def test_a_full_disk_takes_no_job_and_loses_none(
    full: CoordinatorProcess, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"

    async with user_of(full) as user, connect(full, "n1") as agent:
        await agent.hello()
        running = await user.submit("key", workdir="/w")
        task = await agent.prepare()
        await agent.arrange(task)
        queued = await user.submit()
        filler = fill(disk)
        problem = await until(user, 507)
        assert problem["code"] == "disk_full"
        assert str(disk) in problem["detail"]
        assert "make room" in problem["hint"]
        # A repeated submit returns its job, running jobs can end, and queued jobs can be cancelled.
        assert await user.submit("key", workdir="/w") == running
        await agent.say(Heartbeat(1.0))
        while await agent.hear() != HeartbeatAck(1.0):
            pass
        await user.cancel(queued)
        assert (await user.ended(queued))[0] == "CANCELLED"
        fill(disk, "other")
        await user.cancel(running)
        await agent.report(task, TaskState.CLEANED)
        assert (await user.ended(running))[0] == "CANCELLED"
        filler.unlink()
        (disk / "other").unlink()
        await until(user, 201)
    assert [line["level"] for line in full.logged("disk_full")] == ["error"]
    assert full.logged("disk_has_room")
    full.kill()
    full.start()
    async with user_of(full) as user:
        states = [job["state"] for job in (await user.get("/v1/jobs"))["jobs"]]
        assert states.count("CANCELLED") == 2


def test_submits_that_fill_the_disk_are_refused_before_the_reserve_is_used(
    full: CoordinatorProcess, tmp_path: Path
) -> None:
    """40 MB of jobs at once, for a disk of 16 MiB: each has its answer, and what runs ends."""
    big = {**JOB, "env": dict.fromkeys("AB", "x" * 100_000), "workdir": "/w"}

    async def main() -> None:
        async with user_of(full) as user, connect(full, "n1") as agent:
            await agent.hello()
            running = await user.submit()
            task = await agent.prepare()
            await agent.arrange(task)

            # More of a user at once are refused before they are parsed.
            at_once = asyncio.Semaphore(30)

            async def submit() -> int:
                async with at_once, user.http.post("/v1/jobs", json=big) as answer:
                    await answer.read()
                    return answer.status

            answers = await asyncio.gather(*(submit() for _ in range(200)))
            assert set(answers) == {201, 507}
            await user.cancel(running)
            await agent.report(task, TaskState.CLEANED)
            assert (await user.ended(running))[0] == "CANCELLED"

    asyncio.run(main())


async def test_a_coordinator_killed_on_a_full_disk_starts_on_it(
    full: CoordinatorProcess, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    async with user_of(full) as user, connect(full, "n1") as agent:
        await agent.hello()
        job = await user.submit()
        fill(disk)
        await until(user, 507)
        full.kill()
        fill(disk, "other")
    full.start()
    async with aiohttp.ClientSession(full.url, headers=full.headers()) as http:
        user = User(http)
        await user.cancel(job)
        async with http.get("/readyz") as ready:
            assert ready.status == 200
