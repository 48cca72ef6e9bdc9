"""Preparation ahead of time shortens the way from a request to a running program."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent.core.shim_protocol import ShimExit, ShimPhase, ShimRelease, ShimStart, StoppedBy
from agent.shim.fork_server import IDLE_MAX
from agent.shim.system import syscalls
from agent.shim.system.cgroup import own_cgroup
from agent.tasks.adoption import Ownership, examine
from tests.agent.shims.conftest import PATIENCE_S, Node, Stage


def children_of(parent: int) -> set[int]:
    return {
        pid
        for pid, (state, above) in syscalls.processes().items()
        if above == parent and state not in "ZX"
    }


def living() -> set[int]:
    return {pid for pid, (state, _) in syscalls.processes().items() if state not in "ZX"}


async def spare_of(node: Node) -> int:
    """The shim that the fork_server has ready."""
    await node.fork_server.start()
    assert node.fork_server.pid is not None
    fork_server = node.fork_server.pid
    await until(lambda: children_of(fork_server), "a spare shim")
    (spare,) = children_of(fork_server)
    await until(lambda: children_of(spare), "its runner")
    return spare


async def until(holds: Callable[[], object], what: str) -> None:
    """Poll until it holds: foreign processes send no events."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)


def test_the_process_that_was_prepared_is_the_one_that_becomes_the_program(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared()
        assert status.phase is ShimPhase.PREPARED
        waiting = children_of(task.pid)
        assert len(waiting) == 1
        await task.send(ShimStart(argv=["sleep", "1000"]))
        status = await task.phase(ShimPhase.RUNNING)
        assert {rank.pid for rank in status.ranks} == waiting == children_of(task.pid)

    stage.play(story)


def test_a_task_gets_the_shim_that_was_forked_ahead_with_its_runner(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        spare = await spare_of(node)
        runner = children_of(spare)
        task = await node.task()
        assert task.pid == spare
        await task.run("true")
        status = await task.ended()
        assert {rank.pid for rank in status.ranks} == runner
        await task.send(ShimRelease())
        await task.gone()

    any_stage.play(story)


def test_the_next_of_a_burst_has_a_shim_of_its_own(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        spare = await spare_of(node)
        tasks = [await node.task(f"{number}.1.0") for number in range(1, 4)]
        assert [task.pid == spare for task in tasks] == [True, False, False]
        assert len({task.pid for task in tasks}) == 3
        for task in tasks:
            await task.run("true")
            assert (await task.ended()).phase is ShimPhase.CLEANED

    any_stage.play(story)


def test_a_spare_that_was_killed_costs_nobody_a_task(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        spare = await spare_of(node)
        (runner,) = children_of(spare)
        folder = _cgroup_of(runner)
        os.kill(spare, signal.SIGKILL)
        # Not only about to end: what it is sent while its end of the channel is open goes with it.
        await until(lambda: not {spare, runner} & living(), "both are dead")
        task = await node.task()
        assert task.pid != spare
        await task.run("true")
        assert (await task.ended()).exit is not None
        await until(lambda: folder is None or not folder.exists(), "its cgroup removed")

    any_stage.play(story)


def test_the_spare_goes_with_its_template_and_leaves_no_cgroup(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        spare = await spare_of(node)
        (runner,) = children_of(spare)
        folder = _cgroup_of(runner)
        await node.fork_server.close()
        await until(lambda: not {spare, runner} & syscalls.processes().keys(), "gone")
        assert folder is None or not folder.exists()

    any_stage.play(story)


def _cgroup_of(pid: int) -> Path | None:
    base = own_cgroup()
    if base is None:
        return None
    line = next(
        line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line[:3] == "0::"
    )
    name = Path(line[3:]).name
    # Without permission to make a cgroup, the shim stays in its parent's, which must not be
    # removed.
    return Path(base) / "muster" / name if name.startswith("shim-") else None


def test_a_shim_that_has_ended_its_task_takes_the_next(stage: Stage) -> None:
    async def story(node: Node) -> None:
        first = await node.task("7.1.0")
        await first.run("sh", "-c", "echo first")
        await first.ended()
        await first.send(ShimRelease())
        await first.gone()
        await until(lambda: children_of(first.pid), "ready for the next")
        open_files = len(os.listdir(f"/proc/{first.pid}/fd"))
        for number in range(8, 12):
            task = await node.task(f"{number}.1.0")
            assert task.pid == first.pid
            await task.run("sh", "-c", f"echo {number}; exit {number}")
            status = await task.ended()
            assert status.task == f"{number}.1.0"
            assert status.exit is not None
            assert status.exit.code == number
            assert [rank.stdout for rank in status.ranks] == ["logs/rank-0.stdout"]
            assert task.read("logs/rank-0.stdout").decode() == f"{number}\n"
            await task.send(ShimRelease())
            await task.gone()
        assert first.read("logs/rank-0.stdout") == b"first\n"
        files = f"/proc/{first.pid}/fd"
        await until(lambda: len(os.listdir(files)) <= open_files, "no descriptor kept")

    stage.play(story)


def test_a_shim_without_template_ends_with_its_task(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("true")
        await node.fork_server.close()
        await task.ended()
        await task.send(ShimRelease())
        await task.gone()
        await until(lambda: task.pid not in syscalls.processes(), "gone")

    any_stage.play(story)


def test_few_idle_shims_are_kept_after_a_burst(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        await node.fork_server.start()
        fork_server = node.fork_server.pid
        assert fork_server is not None
        tasks = [await node.task(f"{number}.1.0") for number in range(1, 6)]
        for task in tasks:
            await task.run("true")
            await task.ended()
        for task in tasks:
            await task.send(ShimRelease())
            await task.gone()
        await until(lambda: len(children_of(fork_server)) == IDLE_MAX, "the others have ended")

    any_stage.play(story)


def test_a_shim_that_is_given_its_connection_says_nothing_before_it_is_sent_something(
    stage: Stage,
) -> None:
    async def story(node: Node) -> None:
        for number in (7, 8):
            task = await node.given(f"{number}.1.0")
            # A second client that connects has no history, and gets the status at once.
            other = await node.again(task)
            assert (await other.until(lambda _: True)).phase is ShimPhase.NEW
            await task.run("true")
            assert task.received[0].phase is ShimPhase.PREPARED
            assert (await task.ended()).exit == ShimExit(code=0)
            await task.send(ShimRelease())
            await task.gone()

    stage.play(story)


def test_a_shim_whose_given_connection_ends_before_its_start_gives_up(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.given()
        assert (await task.prepared()).phase is ShimPhase.PREPARED
        task.connection.close()
        await until(lambda: examine(task.dir).ownership is Ownership.ENDED, "its record")
        found = examine(task.dir).status
        assert found is not None
        assert (found.phase, found.stopped_by) == (ShimPhase.CLEANED, StoppedBy.ABANDONED)

    any_stage.play(story, orphan_s=0.3)
