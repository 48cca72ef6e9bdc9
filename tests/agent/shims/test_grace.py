"""Stop of a job: the signal goes to every rank once, and the whole grace period passes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from agent.core.shim_protocol import (
    ShimExit,
    ShimKill,
    ShimLease,
    ShimPhase,
    ShimSignal,
    ShimStart,
    ShimStop,
    StoppedBy,
)
from agent.shim.exit_record import Logs
from agent.shim.programs.ranks import Ranks
from agent.shim.status import Status
from examples.local_cluster import free_port
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.test_termination import eventually
from tests.agent.shims.test_torchrun import ENV, behind_gate, torchrun

PYTHON = sys.executable

# Longer than torchrun would give them, and than what is left behind gets.
SAVES = """
import os, signal, sys, time
rank = os.environ.get("RANK", "0")
def save(number, _):
    time.sleep(3)
    print("saved after", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR2, save)
print("up", flush=True)
if os.environ.get("FAILS") == rank:
    while not os.path.exists("go"):
        time.sleep(0.01)
    raise ValueError("the first failure")
if os.environ.get("KILLS_LAUNCHER") == rank:
    while not os.path.exists("go"):
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGKILL)
while True:
    time.sleep(0.01)
"""

# A data loader's worker has its parent's handlers, and its own idea of who called.
COUNTS = """
import os, signal, sys, time
def warned(*_):
    print("warned", os.getpid() == mine, flush=True)
signal.signal(signal.SIGUSR1, warned)
mine = os.getpid()
if os.fork() == 0:
    while os.getppid() == mine:
        time.sleep(0.01)
    os._exit(0)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


# Its checkpoint is written by another process, which takes longer than a launcher may.
LEAVES_WRITER = """
import os, signal, sys, time
def stop(*_):
    if os.fork() == 0:
        os.setsid()
        time.sleep(4)
        print("written", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""

# Fails once it and its sibling have had the signal, and succeeds the second time.
TWO_ROUNDS = """
import os, signal, sys, time
rank, number = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
time.sleep(0.3)
def warned(*_):
    print("warned", number, flush=True)
    open(f"warned-{rank}-{number}", "w").close()
signal.signal(signal.SIGUSR1, warned)
while not all(os.path.exists(f"warned-{one}-{number}") for one in (0, 1)):
    time.sleep(0.01)
while number == "0" and rank == "1":
    time.sleep(0.01)
sys.exit(number == "0")
"""


async def both_up(task: Spoken, folder: Path, script: str, **env: str) -> None:
    """Two ranks that run the script, each as far as `up`."""
    (folder / "train.py").write_text(script)
    start = torchrun(free_port(), str(folder / "train.py"))
    # torchrun's own patience, which is 30 s.
    more = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1", **env}
    await task.send(
        ShimStart(argv=start.argv, env={**ENV, **more}, grace_s=60, stop_signal="SIGUSR2")
    )
    await task.until(lambda status: sum(rank.pid is not None for rank in status.ranks) == 2, "two")
    for rank in (0, 1):
        await written(task, rank, b"up\n")


async def written(task: Spoken, rank: int, text: bytes) -> None:
    """Wait for what a rank writes."""
    log = task.dir / f"logs/rank-{rank}.stdout"
    await eventually(lambda: log.exists() and text in log.read_bytes())


@pytest.mark.torch
def test_torchrun_does_not_cut_the_grace_of_a_stop(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, SAVES)
        await task.send(ShimStop(grace_s=60))
        # Neither does a second one, whatever it says.
        await task.send(ShimStop(grace_s=3600))
        status = await task.ended()
        for rank in (0, 1):
            assert b"saved after SIGTERM" in task.read(f"logs/rank-{rank}.stdout")
        assert [rank.exit and rank.exit.code for rank in status.ranks] == [0, 0]
        assert all(rank.stopped for rank in status.ranks)

    any_stage.play(story)


@pytest.mark.torch
def test_the_sibling_of_a_failed_rank_has_the_job_s_signal_and_its_time(
    any_stage: Stage, tmp_path: Path
) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, SAVES, FAILS="0")
        (tmp_path / "go").touch()
        status = await task.until(lambda it: it.first_failed is not None, "the first failure")
        first, second = status.ranks
        # At once, while its sibling has not even been asked to end.
        assert (status.first_failed, second.exit) == (0, None)
        assert not first.stopped
        assert "the first failure" in (first.error or "")
        status = await task.ended()
        assert b"saved after SIGUSR2" in task.read("logs/rank-1.stdout")
        assert [rank.stopped for rank in status.ranks] == [False, True]
        assert status.stopped_by is None

    any_stage.play(story)


@pytest.mark.torch
def test_ranks_whose_launcher_dies_have_their_time(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, SAVES, KILLS_LAUNCHER="1")
        (tmp_path / "go").touch()
        status = await task.ended()
        assert status.exit == ShimExit(signal=signal.SIGKILL)
        for rank in (0, 1):
            assert b"saved after SIGUSR2" in task.read(f"logs/rank-{rank}.stdout")
        assert all(rank.stopped for rank in status.ranks)
        assert status.first_failed is None

    any_stage.play(story)


@pytest.mark.torch
@pytest.mark.parametrize("hangs", [False, True])
def test_children_of_ended_ranks_get_the_rest_of_the_grace_period(
    any_stage: Stage, tmp_path: Path, hangs: bool
) -> None:
    stays = "if 'RANK' not in os.environ: atexit.register(time.sleep, 1000)"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, os, time\n{stays}\n")
    path = os.environ.get("PYTHONPATH", "")
    env = {**ENV, "PYTHONPATH": f"{tmp_path}:{path}"} if hangs else ENV

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path, env=env)
        await both_up(task, tmp_path, LEAVES_WRITER)
        await task.send(ShimStop(grace_s=60))
        status = await task.ended()
        for rank in (0, 1):
            assert b"written" in task.read(f"logs/rank-{rank}.stdout")
        assert [rank.exit and rank.exit.code for rank in status.ranks] == [0, 0]
        assert status.exit is not None
        assert status.exit.signal == (signal.SIGKILL if hangs else None)

    any_stage.play(story)


@pytest.mark.torch
def test_a_warning_goes_to_the_ranks_alone_and_once(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, COUNTS)
        for number in (1, 1, 2, 1):
            await task.send(ShimSignal("SIGUSR1", number))
            # Signals do not queue: a second pending one is lost, so wait for each to arrive.
            for rank in (0, 1):
                await written(task, rank, b"warned True\n")
        await task.until(lambda status: status.signalled == 2, "signalled")
        for rank in (0, 1):
            await written(task, rank, b"warned True\nwarned True\n")
        status = await (await node.again(task)).phase(ShimPhase.RUNNING)
        assert status.stopped_by is None
        await task.send(ShimKill())
        await task.ended()
        for rank in (0, 1):
            assert task.read(f"logs/rank-{rank}.stdout") == b"up\n" + b"warned True\n" * 2

    any_stage.play(story)


@pytest.mark.torch
def test_ranks_that_begin_after_a_warning_have_it_once_in_each_round(
    any_stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TWO_ROUNDS)

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        argv = list(torchrun(free_port(), "train.py").argv)
        argv[argv.index("--max-restarts") + 1] = "1"
        await task.send(ShimStart(argv=argv, env=ENV, grace_s=60))
        await task.phase(ShimPhase.RUNNING)
        assert not task.last.ranks
        await task.send(ShimSignal("SIGUSR1", 1))
        status = await task.ended()
        assert (status.exit, status.signalled) == (ShimExit(code=0), 1)
        assert status.stopped_by is None
        for rank in (0, 1):
            assert task.read(f"logs/rank-{rank}.stdout") == b"warned 0\nwarned 1\n"

    any_stage.play(story)


@pytest.mark.torch
def test_a_signal_to_one_rank_is_for_it_alone(stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await both_up(task, tmp_path, COUNTS)
        await task.send(ShimSignal("SIGUSR1", 1, ranks=(1, 7), late=False))
        await written(task, 1, b"warned True\n")
        await task.send(ShimSignal("SIGUSR1", 2, late=False))
        for rank in (0, 1):
            await written(task, rank, b"warned True\n" * (rank + 1))
        await task.send(ShimKill())
        await task.ended()
        assert task.read("logs/rank-0.stdout") == b"up\nwarned True\n"

    stage.play(story)


def test_no_warning_comes_after_the_stop(stage: Stage) -> None:
    script = "trap 'echo warned' USR1; trap 'echo term; sleep 0.5; exit 3' TERM; echo up; "
    script += "while true; do sleep 0.01; done"

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("bash", "-c", script)
        await written(task, 0, b"up\n")
        await task.send(ShimStop(grace_s=60))
        await written(task, 0, b"term\n")
        await task.send(ShimSignal("SIGUSR1", 1))
        status = await task.ended()
        assert (status.exit, status.signalled) == (ShimExit(code=3), 0)
        assert b"warned" not in task.read("logs/rank-0.stdout")

    stage.play(story)


def test_an_agent_that_goes_and_comes_does_not_cut_the_grace(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", SAVES)
        await written(task, 0, b"up\n")
        await task.send(ShimStop(grace_s=60))
        await task.phase(ShimPhase.STOPPING)
        task.connection.close()
        again = await node.again(task)
        # A new agent sends its lease and the coordinator's current request.
        await again.send(ShimLease(ttl_s=1000))
        await again.send(ShimStop(grace_s=60))
        status = await again.ended()
        assert status.exit == ShimExit(code=0)
        assert b"saved after SIGTERM" in task.read("logs/rank-0.stdout")

    stage.play(story)


def test_a_lease_that_is_over_uses_the_job_s_own_signal(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        assert (await task.prepared()).phase is ShimPhase.PREPARED
        await task.send(ShimStart(argv=[PYTHON, "-c", SAVES], stop_signal="SIGUSR2"))
        await written(task, 0, b"up\n")
        await task.send(ShimLease(ttl_s=0.1, grace_s=60))
        status = await task.ended()
        assert status.stopped_by == StoppedBy.LEASE
        assert b"saved after SIGUSR2" in task.read("logs/rank-0.stdout")

    stage.play(story)


def test_a_kill_for_memory_is_known_by_the_count_of_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    counts = iter((1, 1, None))
    status = Status("7.1.0", "/logs")
    ranks = Ranks(status, Logs(folder, None), oom_kills=lambda: next(counts))
    try:
        for rank in range(4):
            for fd in ranks.open(rank, rank):
                os.close(fd)
        ranks.ended(0, ShimExit(signal=signal.SIGKILL), None)
        ranks.ended(1, ShimExit(signal=signal.SIGKILL), None)
        ranks.ended(2, ShimExit(signal=signal.SIGSEGV), None)
        ranks.ended(3, ShimExit(signal=signal.SIGKILL), None)
    finally:
        os.close(folder)
    assert [rank.oom for rank in status.ranks] == [True, False, False, False]
