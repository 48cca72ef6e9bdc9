"""Jobs that do not want to end, and ends that nobody asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.core.shim_protocol import (
    ShimExit,
    ShimKill,
    ShimLease,
    ShimPhase,
    ShimPrepare,
    ShimStart,
    ShimStop,
    StoppedBy,
)
from agent.shim import exit_record
from tests.agent.shims.conftest import PATIENCE_S, Node, Spoken, Stage

PYTHON = sys.executable

STUBBORN = """
import signal, time
signal.signal(15, signal.SIG_IGN)
print('up', flush=True)
time.sleep(1e4)
"""

# A daemon as the textbook has it, which moreover ignores SIGTERM, started by a parent that lives
# on.
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3): os.close(fd)
        time.sleep(10000)
    os._exit(0)
os.wait()
print('up', flush=True)
"""

TREE = """
import os, time
for depth in range(5):
    if os.fork() == 0:
        os.setsid()
    os.fork()
print('up', flush=True)
time.sleep(10000)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def eventually(holds: Callable[[], object]) -> None:
    """Look until it holds: for what has no event of its own."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def carriers(task: Spoken) -> list[int]:
    """Living processes that carry the mark of this task's shim."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    marked = f"MUSTER_SHIM={task.dir.name}:{task.pid}:".encode() in file.read()
            except OSError:
                continue
            if marked:
                found.append(int(name))
    return found


async def up(task: Spoken) -> None:
    """The program has said that it is up."""
    await task.phase(ShimPhase.RUNNING)
    await eventually(lambda: b"up" in task.read("logs/rank-0.stdout"))


def test_stop_lets_a_program_end_by_itself(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(
            "sh", "-c", "trap 'echo saved; exit 0' USR1; echo up; while :; do sleep 0.05; done"
        )
        await up(task)
        await task.send(ShimStop(signal="SIGUSR1", grace_s=30))
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert status.stopped_by == StoppedBy.STOP
        assert status.first_failed is None
        assert b"saved" in task.read("logs/rank-0.stdout")
        assert carriers(task) == []

    stage.play(story)


def test_a_rank_that_ignores_the_signal_is_killed_after_the_grace_period(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", STUBBORN)
        await up(task)
        await task.send(ShimStop(grace_s=0.3))
        status = await task.ended()
        assert status.exit == ShimExit(signal=signal.SIGKILL)
        assert status.stopped_by == StoppedBy.STOP
        assert ShimPhase.STOPPING in [received.phase for received in task.received]
        assert carriers(task) == []

    stage.play(story)


def test_a_later_longer_grace_changes_nothing_and_kill_shortens_it(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", STUBBORN)
        await up(task)
        await task.send(ShimStop(grace_s=10_000))
        await task.send(ShimStop(grace_s=20_000))
        await task.phase(ShimPhase.STOPPING)
        await task.send(ShimKill())
        status = await task.ended()
        # The first cause is the cause.
        assert status.stopped_by == StoppedBy.STOP
        assert carriers(task) == []

    stage.play(story)


def test_a_stopped_process_is_killed_too(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", "echo up; kill -STOP $$")
        await up(task)
        await task.send(ShimKill())
        status = await task.ended()
        assert status.stopped_by == StoppedBy.KILL
        assert carriers(task) == []

    stage.play(story)


def test_a_daemon_in_a_session_of_its_own_is_found(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", DAEMON + "time.sleep(10000)")
        await up(task)
        assert len(carriers(task)) == 2
        await task.send(ShimStop(grace_s=0.3))
        await task.ended()
        assert carriers(task) == []

    stage.play(story)


def test_leftover_children_do_not_outlive_their_program(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", DAEMON)
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert status.stopped_by is None
        assert carriers(task) == []
        phases = [received.phase for received in task.received]
        # The exit was reported before the daemon was gone.
        assert phases.index(ShimPhase.EXITED) < phases.index(ShimPhase.CLEANED)

    stage.play(story)


def test_a_tree_of_forks_is_killed_whole(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", TREE)
        await up(task)
        await task.send(ShimKill())
        status = await task.ended()
        assert status.survivors == ()
        assert carriers(task) == []

    stage.play(story)


def test_a_fork_bomb_is_outrun(stage: Stage) -> None:
    bomb = (
        "import os, time\nprint('up', flush=True)\nend = time.time() + 20\n"
        "while time.time() < end:\n"
        "    if os.fork() and os.fork(): os._exit(0)\n"
        "    time.sleep(0.02)\n"
    )
    # Every process is replaced by two and ends, with a ceiling so that a failing test harms nobody.
    bomb = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (5, 5))\n" + bomb.replace(
        "os.fork() and os.fork()", "os.fork()"
    )

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", bomb)
        await up(task)
        await task.send(ShimKill())
        await task.ended()
        assert carriers(task) == []

    stage.play(story)


def test_stop_before_the_gate_ends_what_prepares(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.send(ShimPrepare(allow_root=True, cwd="/", setup=["sleep", "10000"]))
        await task.until(lambda status: status.streams, "in setup")
        await task.send(ShimStop())
        status = await task.ended()
        assert status.phase is ShimPhase.CLEANED
        assert status.exit is None
        assert status.refusal is None
        assert status.stopped_by == StoppedBy.STOP
        await task.send(ShimStart(argv=["true"]))
        assert carriers(task) == []

    stage.play(story)


def test_a_lease_that_ends_stops_the_job(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "10000")
        await task.send(ShimLease(ttl_s=1000))
        await task.phase(ShimPhase.RUNNING)
        await task.send(ShimLease(ttl_s=0.2, grace_s=5))
        status = await task.ended()
        assert status.stopped_by == StoppedBy.LEASE
        assert status.exit == ShimExit(signal=signal.SIGTERM)

    stage.play(story)


def test_a_lease_that_is_over_when_it_is_read_stops_the_job(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "10000")
        await task.phase(ShimPhase.RUNNING)
        asked_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        await task.send(ShimLease(ttl_s=1000, grace_s=5, until=asked_at))
        status = await task.ended()
        assert status.stopped_by == StoppedBy.LEASE
        assert status.exit == ShimExit(signal=signal.SIGTERM)

    stage.play(story)


def test_a_renewed_lease_does_not_end(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "0.5")
        await task.send(ShimLease(ttl_s=0.3))
        await task.send(ShimLease(ttl_s=1000))
        assert (await task.ended()).exit == ShimExit(code=0)

    any_stage.play(story)


def test_a_shim_that_nobody_speaks_to_goes_and_says_so(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        # The connection counts as an agent: nothing happens to this one until it is closed.
        await task.prepared()
        task.connection.close()
        await eventually(lambda: not (task.dir / "shim.sock").exists())
        assert b'"abandoned"' in task.read("exit.json")
        assert carriers(task) == []

    any_stage.play(story, orphan_s=0.3)


def test_a_running_job_is_not_abandoned(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "1")
        await task.phase(ShimPhase.RUNNING)
        task.connection.close()
        # Longer than the limit: the job goes on, and ends by itself.
        await eventually((task.dir / "exit.json").exists)
        again = await node.again(task)
        assert (await again.ended()).exit == ShimExit(code=0)

    any_stage.play(story, orphan_s=0.2)


def test_a_process_held_by_the_kernel_is_reported_and_ended_once_free(
    stage: Stage, freezer: Path
) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "10000")
        status = await task.phase(ShimPhase.RUNNING)
        pid = status.ranks[0].pid
        (freezer / "cgroup.procs").write_text(str(pid))
        (freezer / "freezer.state").write_text("FROZEN")
        try:
            await task.send(ShimStop(grace_s=0.1))
            status = await task.phase(ShimPhase.STUCK)
            assert (status.survivors, status.doomed) == ((pid,), True)
            assert status.exit is None
        finally:
            (freezer / "freezer.state").write_text("THAWED")
        status = await task.ended()
        assert (status.survivors, status.doomed) == ((), False)
        assert status.phase is ShimPhase.CLEANED
        assert status.exit is not None

    stage.play(story, unkillable_s=0.2)


def test_a_task_whose_exit_record_cannot_be_written_says_that_nothing_of_it_is_left(
    stage: Stage,
) -> None:
    """The disk has become read-only. Otherwise its gang would wait for the disk."""

    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared()
        blocked = task.dir / f".{exit_record.EXIT}.new"
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        await task.send(ShimStart(argv=["sh", "-c", "exit 3"]))
        status = await task.until(lambda it: it.doomed, "nothing of it is left")
        assert status.survivors == ()
        assert status.exit is not None
        assert "The exit record cannot be written" in (status.complaint or "")
        blocked.rmdir()
        assert (await task.ended()).doomed is False

    stage.play(story, unkillable_s=0.2)
