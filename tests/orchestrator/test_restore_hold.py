"""A coordinator that was restored from an older backup: it waits for all nodes, and no job runs
twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.ids import JobId, TaskId, task_id
from muster.protocol.link.control_channel import (
    ForgetTask,
    PrepareTask,
    Refused,
    StopTask,
    TaskReport,
)
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, connect, hello, prepared
from tests.orchestrator.journal.commands import in_this_process
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

FIRST = task_id(JobId(1), 1, 0)


def verb(process: CoordinatorProcess, *words: str) -> tuple[int, str]:
    code, output = in_this_process(*words, "--config", str(process.config))
    return code, " ".join(output.split())


async def until_away(user: User) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(it["link"] == "connected" for it in (await user.get("/v1/nodes"))["nodes"]):
            pass


async def declare_lost(user: User, node: str) -> tuple[int, Any]:
    async with user.http.post(f"/v1/nodes/{node}/lost", json={}) as answer:
        return answer.status, await answer.json()


async def reason(user: User) -> str:
    return str((await user.get("/v1/jobs/1"))["reason"]["text"])


async def run_since_the_backup(process: CoordinatorProcess, backup: Path) -> None:
    """Job 1 waits in the backup. Then it starts on n1, as attempt 1."""
    async with user_of(process) as user:
        async with connect(process, "n1") as one, connect(process, "n2") as two:
            await one.hello()
            await two.hello()
        await until_away(user)
        assert await user.submit(retry={"infra": 0}) == 1
        code, said = await asyncio.to_thread(verb, process, "backup", str(backup))
        assert code == 0, said
        async with connect(process, "n1") as one:
            await one.hello()
            assert await one.prepare() == FIRST
    process.terminate()


async def fenced(agent: FakeAgent, task: TaskId) -> None:
    """Take the order to end a task, and carry it out."""
    assert (await agent.expect(StopTask)).task == task
    await agent.report(task, TaskState.CLEANED)
    assert (await agent.expect(ForgetTask)).task == task


def test_a_job_that_ran_since_the_backup_does_not_run_twice(tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"
    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(run_since_the_backup(process, backup))
        code, said = verb(process, "restore", str(backup))
        assert code == 0, said
        assert "No job is placed until all 2 nodes have said hello" in said
        assert "Job 1 has run since the backup" in said

        async def after() -> None:
            held = TaskReport(FIRST, TaskState.STARTED, prepared=prepared())
            async with user_of(process) as user, connect(process, "n2") as two:
                await two.hello()
                assert "1 node known before the restore has not said hello: n1" in await reason(
                    user
                )
                nodes = await user.get("/v1/nodes")
                assert nodes["awaited"] == ["n1"]
                assert "placing is held" in nodes["held"]
                async with connect(process, "n1") as one:
                    await one.hello(tasks=(held,))
                    assert "task 1.1.0 on n1" in await reason(user)
                    assert (await user.get("/v1/nodes"))["held"] == ""
                    await fenced(one, FIRST)
                    first = asyncio.ensure_future(one.expect(PrepareTask))
                    other = asyncio.ensure_future(two.expect(PrepareTask))
                    done, rest = await asyncio.wait(
                        {first, other}, return_when=asyncio.FIRST_COMPLETED
                    )
                    for waits in rest:
                        waits.cancel()
                    (order,) = done
                    # The journal that was replaced knows attempt 1.
                    assert order.result().task == task_id(JobId(1), 1001, 0)

        process.start()
        asyncio.run(after())


def test_a_kill_while_placing_is_held_forgets_nothing(tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"
    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(run_since_the_backup(process, backup))
        assert verb(process, "restore", str(backup))[0] == 0

        async def killed() -> None:
            async with connect(process, "n2") as two, user_of(process) as user:
                await two.hello()
                assert "n1" in await reason(user)
            process.kill()

        async def again() -> None:
            async with user_of(process) as user, connect(process, "n2") as two:
                await two.hello()
                assert "hello: n1" in await reason(user)
                status, said = await declare_lost(user, "n2")
                assert (status, said["code"]) == (409, "node_connected")
                status, said = await declare_lost(user, "n9")
                assert (status, said["code"]) == (404, "unknown_node")
                assert await declare_lost(user, "n1") == (200, {"name": "n1", "changed": True})
                assert (await two.expect(PrepareTask)).task == task_id(JobId(1), 1001, 0)

        process.start()
        asyncio.run(killed())
        process.start()
        asyncio.run(again())


@pytest.mark.parametrize("at_once", [True, False])
def test_the_operator_says_go(tmp_path: Path, at_once: bool) -> None:
    backup = tmp_path / "backup.sqlite"
    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(run_since_the_backup(process, backup))
        code, said = verb(process, "restore", str(backup), *(["--go"] if at_once else []))
        assert code == 0, said
        assert ("No job is placed" in said) != at_once
        if not at_once:
            process.start()
            code, said = verb(process, "restore", "--go")
            assert code == 1
            assert "muster node lost --awaited" in said
            process.terminate()
            code, said = verb(process, "restore", "--go")
            assert (code, "n1, n2" in said) == (0, True), said
        code, said = verb(process, "restore", "--go")
        assert (code, "no job waits for a node" in said) == (0, True), said

        async def after() -> None:
            async with connect(process, "n2") as two:
                await two.hello()
                assert (await two.expect(PrepareTask)).task == task_id(JobId(1), 1001, 0)

        process.start()
        asyncio.run(after())


@pytest.mark.parametrize("restores", [1, 2])
def test_a_node_that_only_the_replaced_journal_knows_is_waited_for(
    tmp_path: Path, restores: int
) -> None:
    """If the backup is restored again, the journal of the first restore names the node."""
    backup = tmp_path / "backup.sqlite"
    with CoordinatorProcess(tmp_path).start() as process:

        async def before() -> str:
            async with user_of(process) as user:
                async with connect(process, "n1") as one:
                    await one.hello()
                await until_away(user)
                await user.submit()
                code, said = await asyncio.to_thread(verb, process, "backup", str(backup))
                assert code == 0, said
                async with connect(process, "later") as later:
                    welcome = await later.hello()
                    assert await later.prepare() == FIRST
            process.terminate()
            return welcome.cluster

        async def after(cluster: str) -> None:
            held = TaskReport(FIRST, TaskState.STARTED, prepared=prepared())
            async with user_of(process) as user, connect(process, "n1") as one:
                await one.hello()
                assert "hello: later" in await reason(user)
                async with connect(process, "later") as other:
                    await other.say(hello("later", agent_id="another"))
                    refused = await other.expect(Refused)
                    assert refused.code == "duplicate_name"
                    assert "muster node lost later" in refused.text
                assert "hello: later" in await reason(user)
                async with connect(process, "later") as later:
                    await later.hello(tasks=(held,), cluster=cluster)
                    await fenced(later, FIRST)
                    assert (await user.get("/v1/nodes"))["awaited"] == []

        cluster = asyncio.run(before())
        for _ in range(restores):
            code, said = verb(process, "restore", str(backup))
            assert code == 0, said
            assert "No job is placed until all 2 nodes have said hello to it (later, n1)" in said
            assert "Job 1 has run since the backup" in said
        process.start()
        asyncio.run(after(cluster))


def test_a_restore_wants_a_backup_or_a_word(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        verb(CoordinatorProcess(tmp_path), "restore")
    assert ended.value.code == 2
