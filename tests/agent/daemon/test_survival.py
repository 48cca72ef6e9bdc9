"""The death of an agent does not disturb its jobs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, StopTask, TaskReport
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.states import TaskState
from tests.agent.daemon.test_one_task import TASK, begin, is_in, prepare, until, until_gone
from tests.agent.process_of_agent import joined

STDOUT = StreamId(TASK, StreamKind.STDOUT, 0)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def waiting_job(folder: Path) -> tuple[str, ...]:
    """Prints A, waits for a file, prints B and exits with 7."""
    script = 'echo A; while [ ! -e "$0" ]; do sleep 0.02; done; echo B; exit 7'
    return ("/bin/sh", "-c", script, str(folder / "go"))


async def test_a_killed_agent_finds_its_task_again(tmp_path: Path) -> None:
    async with joined(tmp_path) as (coordinator, agent, session):
        hello = session.hello
        placed = await begin(session, *waiting_job(tmp_path))
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        await coordinator.logs.until(lambda store: store.data.get(STDOUT) == bytearray(b"A\n"))
        agent.kill()
        await session.gone()
        assert alive(started.ranks[0].pid)

        agent.start()
        later = await coordinator.session()
        again = await later.welcome(TASK)
        assert again.agent_id == hello.agent_id
        (found,) = again.tasks
        assert (found.task, found.state) == (TASK, TaskState.STARTED)
        assert found.ranks == started.ranks
        assert found.prepared is not None
        assert placed.prepared is not None
        assert found.prepared.ports == placed.prepared.ports
        (tmp_path / "go").touch()
        end = await later.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.exit is not None
        assert end.exit.code == 7
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert coordinator.logs.data[STDOUT] == b"A\nB\n"
        await later.send(ForgetTask(TASK))
        await until_gone(tmp_path / "state/tasks" / TASK)


@pytest.mark.parametrize("manifest", ["whole", "empty"])
async def test_an_end_while_there_is_no_agent_is_reported_by_the_next(
    tmp_path: Path, manifest: str
) -> None:
    """Also where a power failure has left nothing of the manifest, which is not synced."""

    folder = tmp_path / "state/tasks" / TASK
    async with joined(tmp_path) as (coordinator, agent, session):
        await begin(session, *waiting_job(tmp_path))
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        shim = parent_of(started.ranks[0].pid)
        assert await agent.end() == 0
        assert alive(started.ranks[0].pid)
        (tmp_path / "go").touch()
        await until(lambda: not alive(started.ranks[0].pid))
        if manifest == "empty":
            await until((folder / "exit.json").exists)
            os.kill(shim, signal.SIGKILL)
            await until(lambda: not alive(shim))
            (folder / "task.json").write_bytes(b"")
        agent.start()
        later = await coordinator.session()
        again = await later.welcome(TASK)
        (found,) = again.tasks
        if found.state is not TaskState.CLEANED:
            found = await later.expect(TaskReport, is_in(TaskState.CLEANED))
        assert found.exit is not None
        assert found.exit.code == 7
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        assert coordinator.logs.data[STDOUT] == b"A\nB\n"
        await later.send(ForgetTask(TASK))
        await until_gone(folder)


async def test_a_killed_shim_is_never_still_running(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, _, session):
        await begin(session, "/bin/sleep", "600")
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        rank = started.ranks[0].pid
        os.kill(parent_of(rank), signal.SIGKILL)
        end = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.stopped_by == "shim_lost"
        assert not alive(rank)
        await session.send(ForgetTask(TASK))
        await until_gone(tmp_path / "state/tasks" / TASK)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_task_whose_folder_was_taken_away_ends(tmp_path: Path, *, killed: bool) -> None:
    async with joined(tmp_path) as (_, _, session):
        await begin(session, *waiting_job(tmp_path))
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        rank = started.ranks[0].pid
        shim = parent_of(rank)
        shutil.rmtree(tmp_path / "state/tasks" / TASK)
        if killed:
            os.kill(shim, signal.SIGKILL)
        else:
            (tmp_path / "go").touch()
        end = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        if killed:
            assert end.stopped_by == "shim_lost"
            assert not alive(rank)
        else:
            assert end.exit is not None
            assert end.exit.code == 7
        await session.send(ForgetTask(TASK))
        # It is free for another.
        await begin(session, "/bin/true", task=TaskId("8.1.0"))


async def test_an_agent_does_not_dial_before_it_knows_all_its_tasks(tmp_path: Path) -> None:
    async with joined(tmp_path) as (coordinator, agent, session):
        await begin(session, "/bin/sleep", "600")
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        shim = parent_of(started.ranks[0].pid)
        agent.kill()
        os.kill(shim, signal.SIGSTOP)
        try:
            agent.start()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(coordinator.session(), 2)
        finally:
            os.kill(shim, signal.SIGCONT)
        later = await coordinator.session()
        (found,) = (await later.welcome(TASK)).tasks
        assert found.state is TaskState.STARTED
        await later.send(StopTask(TASK, force=True))
        await later.expect(TaskReport, is_in(TaskState.CLEANED))


async def test_a_task_that_is_not_to_be_kept_is_killed(tmp_path: Path) -> None:
    async with joined(tmp_path) as (coordinator, agent, session):
        await begin(session, "/bin/sleep", "600")
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        agent.kill()
        agent.start()
        later = await coordinator.session()
        await later.welcome()
        end = await later.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.stopped_by == "kill"
        assert not alive(started.ranks[0].pid)


async def test_half_made_folders_are_removed_at_the_next_start(tmp_path: Path) -> None:
    tasks = tmp_path / "state/tasks"
    (tasks / ".new-5.1.0/scratch").mkdir(parents=True)
    (tasks / ".gone-4.1.0/scratch").mkdir(parents=True)
    (tasks / "6.1.0").mkdir()
    async with joined(tmp_path) as (_, _, session):
        assert session.hello.tasks == ()
        # The agent does not wait for their removal before it serves.
        await until(lambda: not list(tasks.iterdir()))


async def test_two_tasks_after_one_another_share_nothing(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, _, session):
        other = TaskId("7.2.0")
        await begin(session, "/bin/sleep", "600")
        await session.expect(TaskReport, is_in(TaskState.STARTED))
        await session.send(prepare(other))
        second = await session.expect(TaskReport, lambda it: it.state is TaskState.PREPARED)
        await session.send(StopTask(TASK, force=True))
        first = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert first.task == TASK
        assert first.prepared is not None
        assert second.prepared is not None
        assert not set(first.prepared.ports) & set(second.prepared.ports)
        assert first.prepared.scratch != second.prepared.scratch
        assert session.last[other].state is TaskState.PREPARED
