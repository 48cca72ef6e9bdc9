"""Acknowledged work survives the sudden end of the process, and a running job goes on."""

import asyncio
from pathlib import Path

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import connect, prepared
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of

ROUNDS = 20


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    async def join() -> None:
        async with connect(coordinator, "n1") as agent:
            await agent.hello()  # a job is refused where no node is known that could run it

    async def submit_and_be_killed(key: str) -> int:
        async with user_of(coordinator) as user:
            number = await user.submit(key)
            coordinator.kill()
            return number

    async def cancel_and_be_killed(number: int) -> None:
        async with user_of(coordinator) as user:
            await user.cancel(number)
            coordinator.kill()

    async def states() -> dict[int, str]:
        async with user_of(coordinator) as user:
            listed = await user.get("/v1/jobs?limit=1000")
            return {job["id"]: job["state"] for job in listed["jobs"]}

    async def epoch() -> int:
        async with user_of(coordinator) as user:
            found: int = (await user.get("/v1/version"))["epoch"]
            return found

    async def replays(key: str) -> int:
        async with user_of(coordinator) as user:
            return await user.submit(key)

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(join())
        submitted: list[int] = []
        cancelled: list[int] = []
        for number in range(ROUNDS):
            if number % 3 == 2:
                asyncio.run(cancel_and_be_killed(submitted[-1]))
                cancelled.append(submitted[-1])
            else:
                submitted.append(asyncio.run(submit_and_be_killed(f"key-{number}")))
            coordinator.start()
        found = asyncio.run(states())
        assert sorted(found) == submitted == list(range(1, len(submitted) + 1))
        assert [job for job, state in sorted(found.items()) if state == "CANCELLED"] == cancelled
        assert asyncio.run(epoch()) == ROUNDS + 1
        assert asyncio.run(replays("key-0")) == submitted[0]


def test_a_running_job_is_taken_over_by_the_next_process(tmp_path: Path) -> None:
    async def begin() -> tuple[int, TaskId]:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            await agent.hello()
            job = await user.submit()
            task = await agent.prepare()
            await agent.arrange(task)
            await agent.gate(task)
            await agent.report(task, TaskState.STARTED, prepared=prepared(), listening=True)
            seen = await user.get(f"/v1/jobs/{job}")
            while seen["state"] != "RUNNING":
                seen = await user.get(f"/v1/jobs/{job}")
            coordinator.kill()
            return job, task

    async def go_on(job: int, task: TaskId) -> None:
        async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
            running = TaskReport(
                task, TaskState.STARTED, prepared=prepared(), listening=True, terms=1
            )
            welcome = await agent.hello(tasks=(running,), epoch_seen=1)
            assert welcome.keep == (task,)
            assert welcome.epoch == 2
            status = ExitStatus(code=0)
            await agent.report(
                task, TaskState.CLEANED, prepared=prepared(), listening=True, exit=status
            )
            assert await agent.hear() == ForgetTask(task)
            assert await user.ended(job) == ("SUCCEEDED", 0)
            attempts = (await user.get(f"/v1/jobs/{job}"))["attempts"]
            assert len(attempts) == 1

    with CoordinatorProcess(tmp_path).start() as coordinator:
        job, task = asyncio.run(begin())
        coordinator.start()
        asyncio.run(go_on(job, task))
