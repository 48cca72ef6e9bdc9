"""Tasks whose shims are dead, and whose processes the kernel holds: all are waited for at once."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from agent.config import load
from agent.daemon import serve
from agent.leftovers import processes
from agent.shim import exit_record
from agent.taskdirs.taskdirs import TaskDirs
from muster.protocol.ids import TaskId
from tests.agent.daemon.test_one_task import prepare, until
from tests.agent.process_of_agent import write_config

# asyncio has no more than 32 threads.
MANY = 40
PATIENCE_S = 180.0


class Held:
    """Stands for `kill_everything_of`: nobody's wait is over before all have begun."""

    def __init__(self) -> None:
        self._begun = threading.Barrier(MANY)
        self.ended: list[str] = []

    def __call__(self, mark: str, *_: object) -> list[int]:
        self._begun.wait(PATIENCE_S)
        self.ended.append(mark)
        return []


def left_by_a_dead_shim(folders: TaskDirs, task: TaskId) -> None:
    folders.create(prepare(task), ())
    folder = os.open(folders.path(task), os.O_RDONLY)
    try:
        exit_record.write_identity(folder, task, f"{task}:0:left", None)
    finally:
        os.close(folder)


async def test_an_agent_that_starts_waits_for_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr("agent.tasks.adoption.kill_everything_of", held)
    config = load(file=write_config(tmp_path, "http://127.0.0.1:1"), environ={})
    config.state_dir.mkdir()
    folders = TaskDirs(config.state_dir)
    tasks = [TaskId(f"{number}.1.0") for number in range(1, MANY + 1)]
    for task in tasks:
        left_by_a_dead_shim(folders, task)
    stop = asyncio.Event()
    agent = asyncio.create_task(serve(config, stop, {}))
    await until(lambda: all((folders.path(it) / exit_record.EXIT).exists() for it in tasks))
    stop.set()
    await agent
    assert len(held.ended) == MANY


def test_so_does_one_that_ends_what_no_folder_names(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr("agent.leftovers.processes.kill_everything_of", held)
    found = [
        processes.LeftoverProcess(1, "python", f"{number}.1.0:0:left") for number in range(MANY)
    ]
    assert processes.kill_leftovers(found) == []
    assert sorted(held.ended) == sorted(it.mark for it in found)
