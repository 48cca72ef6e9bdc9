"""Limit on the number of processes of a job: the kernel's own, reached by real jobs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.core.shim_protocol import ShimExit, ShimKill
from agent.shim.system.cgroup import FOLDER, own_cgroup
from agent.shims.backend import ShimOptions, options_of
from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import ExitStatus
from orchestrator.core.failures.classify import judge
from tests.agent.shims.conftest import PATIENCE_S, Node, Stage
from tests.agent.shims.test_termination import carriers, eventually, up

MOST = 30
# With a ceiling, so that a bound which is none harms nobody.
FORKS = """
import os, time
for number in range(200):
    if os.fork() == 0:
        time.sleep(10000)
    print(number + 1, flush=True)
"""
BOMB = """
import os, time
print('up', flush=True)
end = time.time() + 60
while time.time() < end:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
"""


@pytest.fixture
def counted() -> Iterator[Path]:
    """A cgroup below which the kernel counts processes: of the second version, or of the first,
    which has the same bound, and of which a shim supports nothing else."""
    name = f"muster-test-{os.getpid()}"
    own = own_cgroup()
    for above in (Path(own or "/nowhere"), Path("/sys/fs/cgroup/pids")):
        made = above / name
        with contextlib.suppress(OSError):
            (above / "cgroup.subtree_control").write_text("+pids")
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / "pids.max").exists():
                break
            made.rmdir()
    else:
        pytest.skip("no cgroup that counts processes can be made here")
    yield made
    deadline = time.monotonic() + PATIENCE_S
    while not _removed(made):
        assert time.monotonic() < deadline, f"{made} is not empty"
        time.sleep(0.05)


def _removed(made: Path) -> bool:
    """Shims that wait for a task end a moment after their fork server."""
    try:
        for folder in (made / FOLDER, made):
            if folder.exists():
                folder.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def stage(counted: Path, tmp_path: Path) -> Stage:
    return Stage(tmp_path, ShimOptions(cgroup_parent=str(counted), processes_max=MOST))


def test_a_job_that_wants_more_is_refused_by_the_kernel_with_the_reason(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(sys.executable, "-c", FORKS)
        status = await task.ended()
        assert status.exit == ShimExit(code=1)
        # Itself is one of them.
        *_, last = task.read("logs/rank-0.stdout").split()
        assert int(last) == MOST - 1
        said = task.read("logs/rank-0.stderr").decode()
        verdict = judge(ExitStatus(1), said)
        assert verdict.kind is FailureKind.PROCESS_LIMIT
        assert "processes_max" in verdict.advice
        assert carriers(task) == []

    stage.play(story)


def test_a_fork_bomb_stays_within_its_bound_and_others_start(stage: Stage, counted: Path) -> None:
    def most() -> int:
        return max(int(it.read_text()) for it in counted.glob(f"{FOLDER}/*/pids.current"))

    async def story(node: Node) -> None:
        bomb = await node.task("7.1.0")
        await bomb.run(sys.executable, "-c", BOMB)
        await up(bomb)
        await eventually(lambda: most() == MOST)
        other = await node.task("8.1.0")
        await other.run("true")
        assert (await other.ended()).exit == ShimExit(code=0)
        assert most() == MOST
        await bomb.send(ShimKill())
        await bomb.ended()
        assert carriers(bomb) == []

    stage.play(story)


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "wanted"),
    [("4194304", "16513011", 3355443), ("32768", "192730", 26214), ("4194304", "1000", 800)],
)
def test_a_fifth_of_what_the_kernel_has_is_left(
    pid_max: str, threads_max: str, wanted: int, tmp_path: Path
) -> None:
    folder = tmp_path / "proc/sys/kernel"
    folder.mkdir(parents=True)
    (folder / "pid_max").write_text(f"{pid_max}\n")
    (folder / "threads-max").write_text(f"{threads_max}\n")
    assert options_of(AgentConfig(), tmp_path).processes_max == wanted
    assert options_of(AgentConfig(processes_max=500), tmp_path).processes_max == 500
    assert options_of(AgentConfig(), tmp_path / "nowhere").processes_max is None
