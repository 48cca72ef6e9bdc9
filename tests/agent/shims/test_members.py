"""A pid that a job names is looked at only if it is a process of its task."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.core.inputs import Input, StacksObserved
from agent.core.shim_protocol import ShimKill, ShimRelease, ShimStart, ShimStatus
from agent.monitors.hangs import py_spy as spy
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.hangs.procfs import Processes
from agent.monitors.hangs.stack_dumps import StackDumper
from agent.probe import py_spy_check
from agent.shim.system import syscalls
from agent.shims.members import ENDED, Process, check
from agent.taskdirs.taskdirs import SCRATCH, TaskDirs, TaskUser
from muster.daemon.task_owner import TaskOwner
from muster.protocol.link.control_channel import DumpStacks
from muster.protocol.observations.hangs import Doing
from tests.agent.monitors.hangs.test_monitor import COMPUTES, SLEEPS, TASK, Now, program, status
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.shim_of import be_shim_of
from tests.agent.shims.test_malformed_messages import HEARD, WAIT, speaker

NOT_OURS = "is not of this task"
NOBODY = pwd.getpwnam("nobody").pw_uid
IDLE = "import os, time; os.write(1, b'up'); time.sleep(10000)"


async def running(node: Node, name: str) -> tuple[Spoken, int]:
    """A task with a program that sleeps, and the pid of that."""
    task = await node.task(name)
    (task.dir / SCRATCH).mkdir()
    await task.run(sys.executable, "-c", IDLE)
    began = await task.until(lambda said: said.ranks and said.ranks[0].pid, "a rank with a pid")
    pid = began.ranks[0].pid
    assert pid is not None
    return task, pid


def problem(folder: Path, pid: int) -> str:
    return check(folder, {0: pid})[0].problem


def test_only_processes_of_the_task_pass(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task, mine = await running(node, "7.1.0")
        other, theirs = await running(node, "8.1.0")
        found = check(task.dir, {0: mine, 1: theirs, 2: os.getpid(), 3: 1, 4: task.pid, 5: 2**22})
        assert found[0] == Process(mine, found[0].began)
        assert found[0].same
        for rank in (1, 2, 3, 4):
            assert NOT_OURS in found[rank].problem
        assert found[5].problem == ENDED
        assert problem(other.dir, theirs) == ""
        await end(other)
        # Without its shim, the owner of a process is unknown.
        assert problem(other.dir, mine)
        await end(task)
        assert problem(task.dir, mine) == ENDED

    stage.play(story)


async def end(task: Spoken) -> None:
    await task.send(ShimKill())
    await task.ended()
    await task.send(ShimRelease())
    await task.gone()


@pytest.mark.skipif(py_spy_check.find() is None, reason="py-spy is not installed")
def test_a_launcher_that_names_others_has_nobody_looked_at(any_stage: Stage) -> None:
    """A real shim passes on what a launcher of any job can report: pids of the agent, of the first
    process, of the shim and of another task."""

    async def story(node: Node) -> None:
        folders = TaskDirs(node.state_dir)
        other, theirs = await running(node, "8.1.0")
        named = (os.getpid(), 1, other.pid, theirs)
        words = f"""
for rank, pid in enumerate({named}, 1):
    tell(t="open", rank=rank, local_rank=rank)
    tell(t="rank", rank=rank, pid=pid)
"""
        task = await speaker(node, f"{words}{HEARD}\n{WAIT}", name=TASK)
        (task.dir / SCRATCH).mkdir()
        await task.send(ShimStart(argv=["train.py"]))

        def reported(said: ShimStatus) -> bool:
            return len(said.ranks) == len(named) + 1 and said.ranks[0].pid is not None

        status = await task.until(reported, "the launcher's own pid as that of rank 0")
        pids = [rank.pid for rank in status.ranks]
        assert pids[1:] == list(named)
        answers, owner = asyncio.Queue[Input](), TaskOwner("test")
        processes = Noted()
        watch = HangMonitor(Now(), lambda _: None, 5.0, node.state_dir, processes)
        watch.heard(TASK, task.dir, status)
        await watch.look()
        assert processes.read == {pids[0]}
        StackDumper(watch, folders, Now(), answers.put_nowait, owner).begin(DumpStacks(TASK, 1, 1))
        async with asyncio.timeout(180):
            answer = await answers.get()
        assert isinstance(answer, StacksObserved)
        mine, *others = answer.report.ranks
        assert mine.problem == ""
        assert all(NOT_OURS in rank.problem and not rank.threads for rank in others)
        assert len(others) == len(named)
        await owner.close()
        await end(task)
        await end(other)

    any_stage.play(story)


def test_a_process_with_the_pid_of_an_earlier_one_does_not_pass(tmp_path: Path) -> None:
    be_shim_of(tmp_path)
    with program(SLEEPS) as process:
        found = check(tmp_path, {0: process.pid})[0]
        assert found.same
        assert not Process(found.pid, found.began - 1).same
    assert not found.same
    assert problem(tmp_path, process.pid) == ENDED


def test_a_shim_whose_pid_another_process_has_is_no_shim(tmp_path: Path) -> None:
    be_shim_of(tmp_path)
    written = (tmp_path / "shim.json").read_text()
    began = syscalls.stat_of(os.getpid())
    assert began is not None
    with program(SLEEPS) as process:
        (tmp_path / "shim.json").write_text(written.replace(str(began[2]), str(began[2] - 1)))
        assert NOT_OURS in problem(tmp_path, process.pid)
        (tmp_path / "shim.json").unlink()
        assert NOT_OURS in problem(tmp_path, process.pid)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a process of another user")
def test_a_process_of_root_in_the_tree_of_a_user_does_not_pass(tmp_path: Path) -> None:
    """A program with the set-user-id bit is such a process."""
    be_shim_of(tmp_path, uid=NOBODY)
    with program(SLEEPS) as process:
        assert "runs as root, and the job does not" in problem(tmp_path, process.pid)
    with as_nobody() as pid:
        assert problem(tmp_path, pid) == ""


@contextmanager
def as_nobody() -> Iterator[int]:
    sleeps = subprocess.Popen(["sleep", "10000"], user=NOBODY, group=NOBODY, extra_groups=[])
    with sleeps:
        try:
            yield sleeps.pid
        finally:
            sleeps.kill()


@pytest.mark.skipif(py_spy_check.find() is None, reason="py-spy is not installed")
def test_the_stacks_of_another_process_are_not_shown(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folder = folders.path(TASK)
    be_shim_of(folder)

    async def story() -> None:
        answers, owner = asyncio.Queue[Input](), TaskOwner("test")
        watch = HangMonitor(Now(), lambda _: None, 5.0, root=tmp_path)
        dumper = StackDumper(watch, folders, Now(), answers.put_nowait, owner)

        async def stacks(pid: int) -> tuple[str, int]:
            watch.heard(TASK, folder, status(pid))
            dumper.begin(DumpStacks(TASK, 1, 1))
            async with asyncio.timeout(180):
                answer = await answers.get()
            assert isinstance(answer, StacksObserved)
            (rank,) = answer.report.ranks
            return rank.problem, len(rank.threads)

        with program(SLEEPS) as process:
            assert await stacks(process.pid) == ("", 1)
        said, threads = await stacks(os.getpid())
        assert NOT_OURS in said
        assert threads == 0
        await owner.close()

    asyncio.run(story())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run py-spy as another user")
@pytest.mark.skipif(py_spy_check.find() is None, reason="py-spy is not installed")
def test_py_spy_runs_as_the_user_of_the_task_whomever_the_process_is_of(tmp_path: Path) -> None:
    with program(SLEEPS) as process:
        stat = syscalls.stat_of(process.pid)
        assert stat is not None
        ranks = {0: Process(process.pid, stat[2])}
        (mine,) = asyncio.run(spy.stacks_of(ranks, TaskUser(0, 0), threads=True))
        assert mine.main
        (theirs,) = asyncio.run(spy.stacks_of(ranks, TaskUser(NOBODY, NOBODY), threads=True))
    assert theirs.main == ()
    assert theirs.problem


class Noted(Processes):
    """Notes of which processes anything is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def environment(self, pid: int, *names: str) -> dict[str, str]:
        self.read.add(pid)
        return super().environment(pid, *names)

    def doing(self, pid: int, *, threads: bool) -> tuple[Doing, str]:
        self.read.add(pid)
        return super().doing(pid, threads=threads)

    def disk_bytes(self, pid: int) -> int | None:
        self.read.add(pid)
        return super().disk_bytes(pid)

    def sockets(self, pids: object) -> frozenset[int] | None:
        found = set(pids)  # type: ignore[call-overload]
        self.read |= found
        return super().sockets(found)


def test_the_watch_reads_nothing_of_a_foreign_process(tmp_path: Path) -> None:
    be_shim_of(tmp_path)
    processes, clock = Noted(), Now()
    watch = HangMonitor(clock, lambda _: None, 5.0, tmp_path, processes)

    def look(pid: int) -> None:
        watch.heard(TASK, tmp_path, status(pid))
        clock.mono += 5.0
        asyncio.run(watch.look())

    for stranger in (os.getpid(), 1):
        look(stranger)
        assert processes.read == set()
        activity = watch.activity(TASK)
        assert activity is None or [rank.rank for rank in activity[0]] == [1]
    with program(COMPUTES) as process:
        look(process.pid)
        assert processes.read == {process.pid}
        # The job takes back what it said, and names the agent.
        processes.read.clear()
        look(os.getpid())
        assert processes.read == set()


def test_the_watch_reads_nothing_of_a_process_with_a_reused_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_shim_of(tmp_path)
    processes, clock = Noted(), Now()
    watch = HangMonitor(clock, lambda _: None, 5.0, tmp_path, processes)
    with program(COMPUTES) as process:
        watch.heard(TASK, tmp_path, status(process.pid))
        asyncio.run(watch.look())
        assert process.pid in processes.read
        processes.read.clear()
        real = syscalls.stat_of

        def later(pid: int) -> tuple[str, int, int] | None:
            found = real(pid)
            younger = pid == process.pid and found is not None
            return (found[0], found[1], found[2] + 1) if younger and found else found

        monkeypatch.setattr(syscalls, "stat_of", later)
        clock.mono += 5.0
        asyncio.run(watch.look())
        assert processes.read == set()
        activity = watch.activity(TASK)
        assert activity is not None
        assert activity[0][0].doing is Doing.GONE


def test_a_pid_that_was_given_to_another_process_is_not_counted(tmp_path: Path) -> None:
    text = "import subprocess,sys;c=subprocess.Popen(['sleep','600']);print('ready',flush=True)"
    with program(text + ";c.wait()") as process:
        processes = Processes()
        (child,) = set(processes.look([process.pid])[process.pid]) - {process.pid}
        processes._began[child] -= 1
        assert processes.look([process.pid])[process.pid] == [process.pid]
        # It is looked at anew.
        assert processes.look([process.pid])[process.pid] == [process.pid, child]
        os.kill(child, 9)
