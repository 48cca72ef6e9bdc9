"""Entries in the folder of tasks that no task made: named in one line, and left where they are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.taskdirs.taskdirs import TaskDirs, has_tasks
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, TaskReport
from muster.protocol.states import TaskState
from tests.agent.daemon.test_one_task import TASK, begin, is_in, until
from tests.agent.daemon.test_survival import waiting_job
from tests.agent.process_of_agent import joined


def scatter(tasks: Path, elsewhere: Path) -> set[str]:
    """Create an entry of each kind; returns their names."""
    tasks.mkdir(parents=True, exist_ok=True)
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("not of a task")
    (tasks / "5.1.0").write_text("a file")
    (tasks / "5.1.1").symlink_to(elsewhere)
    (tasks / "5.1.2").symlink_to("nowhere")
    (tasks / "5.1.3").symlink_to("5.1.3")
    os.mkfifo(tasks / "5.1.4")
    (tasks / "5.1.5").mkdir()
    (tasks / "5.1.5" / "lock").mkdir()
    (tasks / "5.1.6").mkdir()
    (tasks / "5.1.6" / "exit.json").mkdir()
    (tasks / "5.1.7").mkdir()
    (tasks / "5.1.7" / "shim.json").symlink_to(elsewhere / "kept")
    (tasks / "5.1.8").mkdir()
    (tasks / "5.1.8" / "logs").write_text("a file")
    (tasks / "notes.txt").write_text("a file")
    (tasks / "old").mkdir()
    (tasks / "old" / "kept").write_text("of an operator")
    return set(os.listdir(tasks))


async def test_a_start_goes_on_with_its_tasks_and_leaves_the_rest(tmp_path: Path) -> None:
    tasks = tmp_path / "state/tasks"
    async with joined(tmp_path) as (coordinator, agent, session):
        await begin(session, *waiting_job(tmp_path))
        await session.expect(TaskReport, is_in(TaskState.STARTED))
        agent.kill()
        await session.gone()
        await asyncio.to_thread(scatter, tasks, tmp_path / "elsewhere")
        junk = set(os.listdir(tasks)) - {TASK}
        agent.start()
        later = await coordinator.session()
        again = await later.welcome(TASK)
        assert [found.task for found in again.tasks] == [TASK]
        (tmp_path / "go").touch()
        ended = await later.expect(TaskReport, is_in(TaskState.CLEANED))
        assert ended.exit is not None
        assert ended.exit.code == 7
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        await later.send(ForgetTask(TASK))
        await until(lambda: set(os.listdir(tasks)) == junk)
        (line,) = [line for line in agent.log.read_text().splitlines() if "not_tasks" in line]
        assert all(name in line for name in junk)
    assert (tmp_path / "elsewhere/kept").read_text() == "not of a task"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_the_removal_of_a_task_leaves_what_has_its_name_and_is_no_folder(
    kind: str, tmp_path: Path
) -> None:
    """A task of that name could not begin, and its removal is asked for."""
    folders = TaskDirs(tmp_path)
    junk = tmp_path / "tasks" / TASK
    if kind == "file":
        junk.write_text("a file")
    else:
        junk.symlink_to(tmp_path)
    folders.remove(TASK)
    assert os.listdir(tmp_path / "tasks") == [TASK]


def test_junk_does_not_keep_the_old_name_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "5.1.0").write_text("a file")
    assert not has_tasks(tmp_path)
    TaskDirs(tmp_path).path(TaskId("6.1.0")).mkdir()
    assert has_tasks(tmp_path)
