"""A real torchrun behind the gate."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.shim_protocol import (
    ShimExit,
    ShimPhase,
    ShimPrepare,
    ShimStart,
    ShimStatus,
    ShimStop,
    ShimUser,
    StoppedBy,
    StreamName,
)
from examples.local_cluster import free_port
from muster.protocol.refusal_codes import RefusalCode
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.test_termination import carriers

PYTHON = sys.executable
ENV = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(params=["exec", "fork"], autouse=True)
def start_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks behave the same however they are started."""
    monkeypatch.setitem(ENV, "MUSTER_START_METHOD", request.param)


def torchrun(port: int, *script: str, processes: int = 2) -> ShimStart:
    """Return the arguments of one node, as the coordinator makes them."""
    return ShimStart(
        argv=[
            *("--nnodes", "1", "--node-rank", "0", "--nproc-per-node", str(processes)),
            *("--rdzv-backend", "static", "--master-addr", "127.0.0.1"),
            *("--master-port", str(port), "--rdzv-id", "7.1", "--max-restarts", "0"),
            *("--redirects", "3", "--local-addr", "127.0.0.1"),
            *script,
        ],
        env=ENV,
        listen_port=port,
        grace_s=60,
    )


def c10d(port: int, *script: str) -> ShimStart:
    """The same for a gang that may grow."""
    return ShimStart(
        argv=[
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"127.0.0.1:{port}"),
            *("--rdzv-conf", "is_host=1,last_call_timeout=1", "--rdzv-id", "7.1"),
            *("--max-restarts", "0", "--redirects", "3", "--local-addr", "127.0.0.1"),
            *script,
        ],
        env=ENV,
        listen_port=port,
        grace_s=60,
    )


async def behind_gate(
    node: Node, folder: Path, name: str = "7.1.0", *, env: dict[str, str] = ENV
) -> Spoken:
    """A task whose bootstrap waits."""
    task = await node.task(name)
    await task.send(
        ShimPrepare(launcher="torchrun", python=PYTHON, cwd=str(folder), allow_root=True, env=env)
    )
    status = await task.phase(ShimPhase.PREPARED, ShimPhase.REFUSED)
    assert status.phase is ShimPhase.PREPARED, status.refusal
    return task


def rank_exit(status: ShimStatus, rank: int) -> ShimExit | None:
    found = [known.exit for known in status.ranks if known.rank == rank]
    return found[0] if found else None


ALL_REDUCE = """
import os, sys, torch, torch.distributed as dist
import beside
from torch.distributed.elastic.multiprocessing.errors import record
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print("rank", dist.get_rank(), "sum", value.item(), beside.NAME, __name__, os.getcwd(), sys.path[0])
print("error of", os.environ["RANK"], file=sys.stderr)
print("path", os.environ["PATH"], file=sys.stderr)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_two_ranks_all_reduce_and_their_files_are_theirs(any_stage: Stage, tmp_path: Path) -> None:
    scripts, work = tmp_path / "scripts", tmp_path / "work"
    scripts.mkdir()
    work.mkdir()
    (scripts / "train.py").write_text(ALL_REDUCE)
    (scripts / "beside.py").write_text("NAME = 'neighbour'")
    # The file has the name of a module that torch imports. torchrun started by hand does not see
    # it, so the one that the shim starts must not either.
    (work / "logging.py").write_text("raise RuntimeError('shadowed')")

    async def story(node: Node) -> None:
        task = await behind_gate(node, work)
        fingerprint = task.last.fingerprint
        assert fingerprint is not None
        assert fingerprint.python == ".".join(map(str, sys.version_info[:3]))
        assert fingerprint.torch
        assert (task.last.boot_s or 0) > 0
        assert task.last.ranks == ()
        await task.send(torchrun(free_port(), str(scripts / "train.py")))
        status = await task.ended()
        assert status.exit == ShimExit(code=0), task.read("logs/launcher.log").decode()
        assert status.listening
        assert [(rank.rank, rank.local_rank) for rank in status.ranks] == [(0, 0), (1, 1)]
        for rank in status.ranks:
            assert rank.exit is not None
            assert rank.exit.code == 0
            wanted = f"rank {rank.rank} sum 3.0 neighbour __main__ {work} {scripts}\n"
            assert task.read(rank.stdout).decode() == wanted
            said = task.read(rank.stderr).decode()
            assert f"error of {rank.rank}" in said
            assert f"path {os.path.dirname(PYTHON)}:/usr/local/sbin:" in said
        assert {stream.stream for stream in status.streams} == {
            StreamName.LAUNCHER,
            StreamName.STDOUT,
            StreamName.STDERR,
        }
        assert not (task.dir / "shim.log").exists()

    any_stage.play(story)


# Rank 1 ends with 3 once rank 0, which ignores SIGTERM, has said that it does.
ONE_FAILS = """
import os, signal, sys, time
flag = os.path.join(os.getcwd(), "ready")
if os.environ["RANK"] == "0":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), print("asked", len(asked))))
    open(flag, "w").close()
    while True:
        time.sleep(0.05)
while not os.path.exists(flag):
    time.sleep(0.01)
print("about to fail", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.torch
def test_a_failed_rank_is_reported_while_its_sibling_lives(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ONE_FAILS)

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await task.send(torchrun(free_port(), "train.py"))
        status = await task.until(lambda status: rank_exit(status, 1), "rank 1 ended")
        assert status.phase is ShimPhase.RUNNING
        failed = rank_exit(status, 1)
        assert failed is not None
        assert failed.code == 3
        assert status.first_failed == 1
        assert rank_exit(status, 0) is None
        assert status.ranks[1].error == "about to fail"
        pid = status.ranks[0].pid
        assert pid is not None
        # torchrun asks for the end of rank 0, once; so must the stop that follows not ask again.
        await task.send(ShimStop(grace_s=1.5))
        status = await task.ended()
        ended = rank_exit(status, 0)
        assert ended is not None
        assert ended.signal == signal.SIGKILL
        assert status.first_failed == 1
        assert status.stopped_by == StoppedBy.STOP
        assert task.read("logs/rank-0.stdout") == b"asked 1\n"
        assert carriers(task) == []

    stage.play(story)


FAILURES = """
import os, signal, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "0":
        raise ValueError("the data are not there")
    import time
    time.sleep(1000)

if os.environ["HOW"] == "record":
    main()
if os.environ["HOW"] == "import":
    import no_such_module_x
if os.environ["HOW"] == "kill":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    import time
    time.sleep(1000)
"""


@pytest.mark.torch
def test_the_output_of_a_failed_rank_is_reported(any_stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILURES)

    async def fail(node: Node, how: str, *argv: str) -> tuple[ShimStatus, Spoken]:
        task = await behind_gate(node, tmp_path, f"{how}.1.0")
        start = torchrun(free_port(), *argv)
        await task.send(ShimStart(argv=start.argv, env={**ENV, "HOW": how}, grace_s=20))
        return await task.ended(), task

    async def story(node: Node) -> None:
        status, _ = await fail(node, "record", "train.py")
        assert status.first_failed == 0
        error = status.ranks[0].error or ""
        assert error.startswith("Traceback")
        assert error.endswith("ValueError: the data are not there")
        assert status.exit == ShimExit(code=1)
        # torchrun sent SIGTERM to the sibling through the shim, and the sibling ended at once.
        sibling = rank_exit(status, 1)
        assert sibling is not None
        assert sibling.signal == signal.SIGTERM
        assert status.stopped_by is None

        status, _ = await fail(node, "import", "-m", "train")
        assert "ModuleNotFoundError: No module named 'no_such_module_x'" in (
            status.ranks[status.first_failed or 0].error or ""
        )

        status, _ = await fail(node, "kill", "train.py")
        assert status.first_failed == 1
        killed = rank_exit(status, 1)
        assert killed is not None
        assert killed.signal == signal.SIGKILL

        status, task = await fail(node, "missing", "no_such_script.py")
        assert "no_such_script.py" in (status.ranks[0].error or "")
        assert not (task.dir / "shim.log").exists()

    any_stage.play(story)


# In the job's interpreter: waitpid returns the end of a rank later than to everybody else.
HEARS_LATE = """
import os, threading, time
real = os.waitid
def late(*args):
    info = real(*args)
    if threading.current_thread() is not threading.main_thread():
        time.sleep(1)
    return info
os.waitid = late
"""


@pytest.mark.torch
def test_the_rank_that_failed_is_reported_before_its_siblings_are_asked_to_end(
    any_stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(FAILURES)
    (tmp_path / "sitecustomize.py").write_text(HEARS_LATE)

    async def story(node: Node) -> None:
        env = {**ENV, "PYTHONPATH": str(tmp_path)}
        task = await behind_gate(node, tmp_path, env=env)
        start = torchrun(free_port(), "train.py")
        await task.send(ShimStart(argv=start.argv, env={**env, "HOW": "kill"}, grace_s=60))
        status = await task.ended()
        assert status.first_failed == 1
        assert [rank.stopped for rank in status.ranks] == [True, False]

    any_stage.play(story)


# Rank 1 is as late as can be: its launcher may not have reported its ranks yet.
KILLS_LAUNCHER = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(1000)
"""


@pytest.mark.torch
def test_a_launcher_that_dies_takes_its_ranks_along(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLS_LAUNCHER)

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await task.send(torchrun(free_port(), "train.py"))
        status = await task.ended()
        assert status.exit == ShimExit(signal=signal.SIGKILL)
        assert all(rank.exit is not None for rank in status.ranks)
        assert carriers(task) == []

    stage.play(story)


@pytest.mark.torch
def test_a_launcher_that_dies_at_the_gate_is_refused(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        launcher = min(carriers(task))
        os.kill(launcher, signal.SIGKILL)
        status = await task.ended()
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.BOOTSTRAP_FAILED
        assert "signal 9" in status.refusal.text

    any_stage.play(story)


def test_interpreters_that_will_not_do(any_stage: Stage, tmp_path: Path) -> None:
    bare = tmp_path / "venv" / "bin"
    bare.mkdir(parents=True)
    # A prefix whose interpreter has no torch: -S hides site-packages.
    (bare / "python3").write_text(f'#!/bin/sh\nexec {PYTHON} -I -S "$@"\n')
    (bare / "python3").chmod(0o755)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho libpython3.so is missing >&2\nexit 5\n")
    broken.chmod(0o755)
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 93\n")
    old.chmod(0o755)

    async def story(node: Node) -> None:
        for number, (python, code, words) in enumerate(
            [
                ("/no/python", RefusalCode.NO_PYTHON, "/no/python"),
                (str(bare.parent), RefusalCode.NO_TORCH, "has no torch"),
                (str(broken), RefusalCode.BOOTSTRAP_FAILED, "libpython3.so is missing"),
                (str(old), RefusalCode.NO_PYTHON, "older than Python 3.9"),
            ]
        ):
            task = await node.task(f"{number}.1.0")
            status = await task.prepared(launcher="torchrun", python=python)
            assert status.refusal is not None, python
            assert status.refusal.code == code
            assert words in status.refusal.text
            assert carriers(task) == []

    any_stage.play(story)


@pytest.mark.torch
@pytest.mark.root
def test_a_job_of_another_user_reaches_its_files_and_no_others(
    any_stage: Stage, tmp_path: Path
) -> None:
    """The task's folder is closed to the job's user, torchrun's files and the bootstrap are not."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    env = {**ENV, "PYTHONPATH": str(Path(torch.origin).parents[1])}
    usable = [python for python in (PYTHON, "/usr/bin/python3") if _nobody_can_run(python, env)]
    if not usable:
        pytest.skip("no interpreter that finds torch can be run by other users")

    async def story(node: Node) -> None:
        task = await node.task()
        await task.send(
            ShimPrepare(
                launcher="torchrun", python=usable[0], cwd="/", user=ShimUser("nobody"), env=env
            )
        )
        status = await task.phase(ShimPhase.PREPARED, ShimPhase.REFUSED)
        assert status.phase is ShimPhase.PREPARED, status.refusal
        await task.send(torchrun(free_port(), "-m", "platform"))
        status = await task.ended()
        assert status.exit == ShimExit(code=0), task.read("logs/launcher.log").decode()
        assert task.read("logs/rank-1.stdout").startswith(b"Linux")

    any_stage.play(story)


def _nobody_can_run(python: str, env: dict[str, str]) -> bool:
    try:
        tried = subprocess.run(
            [python, "-c", "import torch"], user="nobody", env=env, cwd="/", check=False
        )
    except OSError:
        return False
    return tried.returncode == 0


@pytest.mark.torch
@pytest.mark.parametrize("rendezvous", [torchrun, c10d])
def test_a_rendezvous_port_that_another_program_took_is_reported(
    any_stage: Stage, tmp_path: Path, rendezvous: Callable[..., ShimStart]
) -> None:
    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as thief:
            port = thief.getsockname()[1]
            await task.send(rendezvous(port, "never.py"))
            status = await task.phase(ShimPhase.CLEANED)
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.PORT_TAKEN
        assert (
            status.refusal.text == f"port {port} was free, but another program has taken it since"
        )
        assert status.exit is not None
        assert status.exit.code == 1
        assert not status.ranks

    any_stage.play(story)


@pytest.mark.torch
def test_a_port_that_a_rank_wanted_is_the_ranks_own_affair(
    any_stage: Stage, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    raise OSError('EADDRINUSE: my own port')\n"
        "main()\n"
    )

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await task.send(torchrun(free_port(), str(script), processes=1))
        status = await task.phase(ShimPhase.CLEANED)
        assert status.refusal is None
        assert rank_exit(status, 0) is not None

    any_stage.play(story)


NESTED = """
import os, sys
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write('{"message": ' + "[" * 100_000)
print("the data are not there", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.torch
def test_an_error_file_that_nobody_can_read_hides_no_end(any_stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NESTED)

    async def story(node: Node) -> None:
        task = await behind_gate(node, tmp_path)
        await task.send(torchrun(free_port(), "train.py", processes=1))
        status = await task.ended()
        failed = rank_exit(status, 0)
        assert failed is not None
        assert failed.code == 3
        assert status.first_failed == 0
        assert status.ranks[0].error == "the data are not there"

    any_stage.play(story)
