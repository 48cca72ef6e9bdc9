"""Real shims that keep a time limit, with no agent that would remind them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.core.shim_protocol import ShimExit, ShimLimit, ShimPhase, ShimStart, StoppedBy
from agent.tasks.adoption import Ownership
from tests.agent.shims.conftest import Node, Stage, found_in
from tests.agent.shims.test_grace import COUNTS, both_up, written
from tests.agent.shims.test_termination import eventually
from tests.agent.shims.test_torchrun import behind_gate

PYTHON = sys.executable
SAVES = """
import signal, sys, time
def caught(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR2:
        time.sleep(0.5)
        print("saved", flush=True)
        sys.exit(0)
signal.signal(signal.SIGUSR1, caught)
signal.signal(signal.SIGUSR2, caught)
while True:
    time.sleep(0.01)
"""


def test_the_limit_warns_and_ends_a_task_that_no_agent_watches(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        assert (await task.prepared()).phase is ShimPhase.PREPARED
        await task.send(ShimLimit(1, limit_s=10.0, warn_s=2.0, warn_signal="SIGUSR1"))
        start = ShimStart(argv=[PYTHON, "-c", SAVES], stop_signal="SIGUSR2", grace_s=60)
        await task.send(start)
        await task.phase(ShimPhase.RUNNING)
        task.connection.close()
        await eventually(lambda: found_in(node.state_dir)[0].ownership is Ownership.ENDED)
        (found,) = found_in(node.state_dir)
        assert found.status is not None
        assert (found.status.stopped_by, found.status.warned_s) == (StoppedBy.LIMIT, 2.0)
        assert found.status.exit == ShimExit(code=0)
        assert found.status.running_s is not None
        assert found.status.running_s >= 10.0
        assert task.read("logs/rank-0.stdout") == b"SIGUSR1\nSIGUSR2\nsaved\n"

    # It waits for no agent at its end.
    stage.play(story, linger_s=0.1)


def test_the_limit_kills_after_the_grace(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        assert (await task.prepared()).phase is ShimPhase.PREPARED
        script = "trap '' TERM; echo up; while true; do sleep 0.05; done"
        await task.send(ShimStart(argv=["bash", "-c", script], grace_s=0.5))
        await task.phase(ShimPhase.RUNNING)
        await eventually(lambda: task.read("logs/rank-0.stdout") == b"up\n")
        await task.send(ShimLimit(1, limit_s=0.5))
        status = await task.ended()
        assert status.stopped_by == StoppedBy.LIMIT
        assert status.exit is not None
        assert status.exit.signal == 9

    stage.play(story)


def test_a_running_task_follows_a_new_limit(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", SAVES)
        await task.phase(ShimPhase.RUNNING)
        await task.send(ShimLimit(1, limit_s=1000.0))
        again = await node.again(task)
        await again.send(ShimLimit(2, limit_s=0.1))
        status = await again.ended()
        assert status.stopped_by == StoppedBy.LIMIT

    stage.play(story)


@pytest.mark.torch
def test_ranks_of_torchrun_are_warned_once(stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, COUNTS)
        await task.send(ShimLimit(1, limit_s=1000.0, warn_s=0.1, warn_signal="SIGUSR1"))
        for rank in (0, 1):
            await written(task, rank, b"warned True\n")
        await task.send(ShimLimit(1, limit_s=1000.0, warn_s=0.1, warn_signal="SIGUSR1"))
        await task.send(ShimLimit(2, limit_s=0.2))
        status = await task.ended()
        assert (status.stopped_by, status.warned_s, status.signalled) == ("limit", 0.1, 0)
        for rank in (0, 1):
            assert task.read(f"logs/rank-{rank}.stdout") == b"up\nwarned True\n"

    stage.play(story)
