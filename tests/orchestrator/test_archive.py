"""Jobs that have gone to the archive: everything that is asked of them has the answer it had."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, PrepareTask, StopTask
from muster.protocol.link.log_channel import (
    EndStream,
    LogAck,
    StreamId,
    StreamKind,
    TaskLogsEnd,
    TaskLogsStored,
)
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import FakeAgent, connect, connect_logs
from tests.orchestrator.process import DEADLINE_S, CoordinatorProcess
from tests.orchestrator.user import JOB, User, user_of

QUESTIONS = ("", "/events", "/spec", "/env", "/explain", "/wait", "/events?after=4&limit=2")
LISTS = (
    "",
    "?state=SUCCEEDED",
    "?state=FAILED,CANCELLED",
    "?state=QUEUED",
    "?user=admin-user",
    "?user=nobody",
    "?name=second",
    "?name=second&state=FAILED&pool=default",
    "?limit=2",
)


async def archived(process: CoordinatorProcess, jobs: int) -> None:
    """Wait until so many jobs, or more, are in the archive."""
    path = f"file:{process.state_dir}/journal.sqlite?mode=ro"
    async with asyncio.timeout(DEADLINE_S):
        with closing(sqlite3.connect(path, uri=True)) as database:
            count = "SELECT count(*) FROM archived"
            while database.execute(count).fetchone() < (jobs,):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster(process: CoordinatorProcess) -> AsyncIterator[tuple[User, FakeAgent]]:
    async with (
        asyncio.timeout(2 * DEADLINE_S),
        user_of(process) as user,
        connect(process, "n1") as agent,
    ):
        await agent.hello()
        yield user, agent


async def run(agent: FakeAgent, code: int = 0) -> TaskId:
    task = await agent.prepare()
    await agent.arrange(task)
    await agent.finish(task, ExitStatus(code=code))
    return task


async def three(user: User, agent: FakeAgent) -> list[TaskId]:
    """Job 1 succeeds, 2 fails, is tried again and fails, 3 is cancelled as its node makes ready;
    returns the tasks that there were."""
    await user.submit("key-1", name="first")
    tasks = [await run(agent)]
    await user.submit(name="second", retry={"user": 1, "backoff": "10ms"})
    tasks += [await run(agent, 3), await run(agent, 4)]
    await user.submit("key-3", name="third")
    tasks.append((await agent.expect(PrepareTask)).task)
    await user.cancel(3)
    await agent.expect(StopTask)
    await agent.report(tasks[-1], TaskState.CLEANED)
    await agent.expect(ForgetTask)
    assert [await user.ended(job) for job in (1, 2, 3)] == [
        ("SUCCEEDED", 0),
        ("FAILED", 4),
        ("CANCELLED", 121),
    ]
    return tasks


async def shown(user: User) -> dict[str, Any]:
    """Return all views of the three jobs, single and in lists."""
    found = {query: await user.get(f"/v1/jobs{query}") for query in LISTS}
    for job in (1, 2, 3):
        for what in QUESTIONS:
            found[f"{job}{what}"] = await user.get(f"/v1/jobs/{job}{what}")
    found["events"] = [e for e in (await user.get("/v1/events"))["events"] if e["job"]]
    return found


async def ask(user: User, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Status and body."""
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    async with user.http.request(method, path, json=body or {}, headers=given) as answer:
        return answer.status, await answer.json()


async def gauges(user: User) -> list[str]:
    async with user.http.get("/metrics") as answer:
        return [x for x in (await answer.text()).splitlines() if x.startswith("muster_jobs{")]


async def check_verbs(user: User) -> None:
    """Check that requests about an ended job change nothing and answer in the same words."""
    status, cancelled = await ask(user, "POST", "/v1/jobs/2/cancel")
    assert (status, cancelled["already_ended"], cancelled["job"]["id"]) == (202, True, 2)
    for method, path, body in (
        ("PATCH", "/v1/jobs/2", {"priority": 80}),
        ("POST", "/v1/jobs/2/signal", {"signal": "USR1"}),
    ):
        status, problem = await ask(user, method, path, body)
        assert (status, "has ended" in problem["detail"]) == (409, True), problem
    assert (await ask(user, "PATCH", "/v1/jobs/2", {"priority": 80}, If_Match='"9.9"'))[0] == 412
    for path in ("", "/events", "/logs", "/spec", "/env", "/explain", "/wait"):
        assert (await ask(user, "GET", f"/v1/jobs/99{path}"))[0] == 404
    assert (await ask(user, "POST", "/v1/jobs/99/cancel"))[0] == 404


async def check_keys(user: User) -> None:
    """A key makes no second job, however long ago the first was."""
    status, again = await ask(
        user, "POST", "/v1/jobs", {**JOB, "name": "first"}, Idempotency_Key="key-1"
    )
    assert (status, again["id"], again["state"]) == (200, 1, "SUCCEEDED")
    status, problem = await ask(
        user, "POST", "/v1/jobs", {**JOB, "name": "other"}, Idempotency_Key="key-3"
    )
    assert (status, problem["code"], "job 3" in problem["detail"]) == (
        409,
        "idempotency_conflict",
        True,
    )


async def check_stream(user: User, events: list[Any]) -> None:
    """A reader goes on behind the last event that it saw."""
    mine = [event["seq"] for event in events if event["job"] == 2]
    seen = {"Last-Event-ID": str(mine[2]), "Accept": "text/event-stream"}
    async with user.http.get("/v1/jobs/2/events", headers=seen) as answer:
        text = await answer.text()
    ids = [x[4:].partition("-")[0] for x in text.splitlines() if x.startswith("id: ")]
    assert ids == [str(seq) for seq in mine[3:]]
    assert "event: end" in text
    seen["Last-Event-ID"] = str(mine[-1])
    async with user.http.get("/v1/jobs/2/events", headers=seen) as answer:
        assert answer.status == 204


async def check_late_logs(
    process: CoordinatorProcess, user: User, agent: FakeAgent, tasks: list[TaskId]
) -> None:
    """Bytes that come when their job is in the archive are stored, and read."""
    async with connect_logs(process, "n1") as link:
        for task in tasks:
            stream = StreamId(task, StreamKind.STDOUT, 0)
            await link.send(stream, 0, b"late\n")
            await link.hear_until(LogAck(stream, 5))
            await link.say(EndStream(stream, 5))
            await link.say(TaskLogsEnd(task, 1))
            await link.hear_until(TaskLogsStored(task))
    lines = await user.logs(2)
    assert [(x["attempt"], x["node"], x["data"]) for x in lines[:-1]] == [
        (1, "n1", "late\n"),
        (2, "n1", "late\n"),
    ]
    assert (lines[-1]["end"], lines[-1]["state"], lines[-1]["exit_code"]) == (True, "FAILED", 4)
    # Handled like any task that is over: the node may forget a task that it still has.
    await agent.report(tasks[0], TaskState.CLEANED)
    assert await agent.expect(ForgetTask) == ForgetTask(tasks[0])


def test_all_that_is_asked_has_the_answer_it_had(tmp_path: Path) -> None:
    async def main(process: CoordinatorProcess) -> None:
        async with cluster(process) as (user, agent):
            tasks = await three(user, agent)
            before, counted = await shown(user), await gauges(user)
            await archived(process, 3)
            assert await shown(user) == before
            assert await gauges(user) == counted
            await check_late_logs(process, user, agent, tasks)
            for _ in range(2):
                await check_verbs(user)
                await check_keys(user)
                await check_stream(user, before["events"])
        process.kill()
        process.start()
        assert process.events("serving")[-1]["jobs"] == 3
        async with cluster(process) as (user, agent):
            assert await shown(user) == before
            assert await gauges(user) == counted
            await check_verbs(user)
            await check_keys(user)
            await check_stream(user, before["events"])
            status, again = await ask(user, "POST", "/v1/jobs/2/rerun")
            assert (status, again["id"], again["name"], again["rerun_of"]) == (201, 4, "second", 2)
            assert [job["id"] for job in (await user.get("/v1/jobs"))["jobs"]] == [4, 3, 2, 1]
            page = await user.get("/v1/jobs?limit=2")
            page = await user.get(f"/v1/jobs?limit=2&cursor={page['cursor']}")
            assert ([job["id"] for job in page["jobs"]], page["cursor"]) == ([2, 1], None)

    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(main(process))


def test_a_job_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    async def main(process: CoordinatorProcess) -> None:
        async with cluster(process) as (user, agent):
            await three(user, agent)
            await archived(process, 3)
        process.terminate()
        with closing(sqlite3.connect(process.state_dir / "journal.sqlite")) as database:
            database.execute("UPDATE history SET at = 7.5 WHERE job = 2")
            database.execute("UPDATE archived SET pool = 'b' WHERE job = 2")
            database.commit()
        process.start()
        async with user_of(process) as user:
            for path in ("/v1/jobs/2", "/v1/jobs", "/v1/jobs/2/events"):
                status, problem = await ask(user, "GET", path)
                assert (status, problem["code"]) == (503, "journal_unreadable"), path
                assert "--check" in problem["hint"]
            assert (await user.get("/v1/jobs/1"))["state"] == "SUCCEEDED"
            assert [job["id"] for job in (await user.get("/v1/jobs?state=CANCELLED"))["jobs"]] == [
                3
            ]

    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(main(process))


@pytest.mark.long
def test_a_coordinator_killed_as_jobs_move_loses_and_doubles_none(tmp_path: Path) -> None:
    """Killed at whatever moment it comes to, again and again."""
    jobs = 0

    async def some(process: CoordinatorProcess) -> None:
        nonlocal jobs
        async with user_of(process) as user:
            for _ in range(15):
                jobs += 1
                assert await user.submit(f"key-{jobs}") == jobs
                await user.cancel(jobs)
            await archived(process, jobs - 14)  # and the others are on their way

    async def check(process: CoordinatorProcess) -> None:
        async with user_of(process) as user:
            found = await user.get("/v1/jobs?limit=1000")
            assert [job["id"] for job in found["jobs"]] == list(range(jobs, 0, -1))
            assert {job["state"] for job in found["jobs"]} == {"CANCELLED"}
            events = (await user.get("/v1/events?limit=1000"))["events"]
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
            for job in (1, jobs // 2, jobs):
                assert await user.submit(f"key-{job}") == job

    with CoordinatorProcess(tmp_path).start() as process:

        async def join() -> None:
            async with connect(process, "n1") as agent:
                await agent.hello()

        asyncio.run(join())
        for _ in range(2):
            asyncio.run(some(process))
            process.kill()
            process.start()
            asyncio.run(check(process))
