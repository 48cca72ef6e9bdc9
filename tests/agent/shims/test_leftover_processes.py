"""Processes of jobs whose shim is dead and for which no folder is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.daemon import _end_remains
from agent.leftovers import processes
from agent.leftovers.kill import MARK, kill_everything_of
from agent.probe.fabric import host_problems
from tests.agent.shims.conftest import Node, Stage
from tests.agent.shims.test_termination import DAEMON, carriers, up
from tests.cluster.jobs import until
from tests.fuse import dying


def of_task(mark: str) -> tuple[processes.LeftoverProcess, ...]:
    """Return the leftover processes of this test: other tests kill shims, too."""
    return tuple(it for it in processes.leftover_processes() if it.mark == mark)


def test_they_are_named_and_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(node: Node) -> None:
        task = await node.task("7.1.0")
        await task.run(sys.executable, "-c", DAEMON + "time.sleep(10000)")
        await up(task)
        marked = sorted(carriers(task))
        mark = json.loads(task.read("shim.json"))["mark"]
        assert of_task(mark) == ()  # its shim lives
        os.kill(task.pid, signal.SIGKILL)
        await task.gone()
        shutil.rmtree(task.dir)
        found = of_task(mark)
        assert sorted(it.pid for it in found) == marked
        assert {it.task for it in found} == {"7.1.0"}
        (problem,) = host_problems.of_earlier_lives(found)
        assert f"process {found[0].pid} (python" in problem.what
        assert str(marked[-1]) in problem.fix

        monkeypatch.setattr("agent.daemon.leftover_processes", lambda: found)
        shared = AgentConfig(node="n1", shared_host=True)
        await asyncio.to_thread(_end_remains, shared)
        assert sorted(carriers(task)) == marked
        await asyncio.to_thread(_end_remains, AgentConfig(node="n1"))
        assert carriers(task) == []
        printed = capsys.readouterr()
        assert f"process {found[0].pid} (python" in printed.out + printed.err

    stage.play(story)


def test_a_shim_that_nobody_has_reaped_is_dead(tmp_path: Path) -> None:
    shim = tmp_path / "muster-shim"
    shim.symlink_to("/bin/true")  # the kernel names a process by how it was called
    with subprocess.Popen([shim]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        mark = f"7.1.0:{zombie.pid}:0"
        with subprocess.Popen(["sleep", "10000"], env={MARK: mark}) as left:
            try:
                assert [it.pid for it in of_task(mark)] == [left.pid]
            finally:
                left.kill()


@pytest.mark.root
def test_a_shim_that_is_dying_is_dead(tmp_path: Path) -> None:
    """Its agent sees the connection end before that, and looks for the processes of the task."""
    shim = tmp_path / "muster-shim"
    shim.symlink_to("/bin/sleep")
    with dying(tmp_path, shim, "10000") as (pid, held):
        mark = f"7.1.0:{pid}:0"
        with subprocess.Popen(["sleep", "10000"], env={MARK: mark}) as left:
            try:
                assert of_task(mark) == ()
                os.kill(pid, signal.SIGKILL)
                until(held.exists, "the kernel holds it")
                assert [it.pid for it in of_task(mark)] == [left.pid]
            finally:
                left.kill()


@pytest.mark.root
def test_a_process_that_is_dying_is_not_gone(tmp_path: Path) -> None:
    """It has lost its environment, by which it is found, and may still have a GPU."""
    mark = f"7.1.0:{os.getpid()}:0"
    with dying(tmp_path, "/usr/bin/env", f"{MARK}={mark}", "sleep", "10000") as (pid, _):
        environ = Path(f"/proc/{pid}/environ")
        until(lambda: mark.encode() in environ.read_bytes(), "it has its environment")
        assert kill_everything_of(mark, None, give_up_s=0.5) == [pid]


@pytest.mark.parametrize(
    "mark", ["7.1.0:" + "9" * 5000 + ":0", "\x1b[2J:1:0", "7.1.0", "7.1.0:x:0", "a b:1:0"]
)
def test_a_mark_that_no_shim_made_is_none(mark: str) -> None:
    """Any user can put any text there: it ends no process, reaches no log and stops no agent."""
    with subprocess.Popen(["sleep", "10000"], env={MARK: mark}) as other:
        try:
            assert [it for it in processes.leftover_processes() if it.pid == other.pid] == []
        finally:
            other.kill()
