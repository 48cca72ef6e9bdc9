"""Ranks that the shim starts itself: the same program several times on one node."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from agent.core.shim_protocol import ShimExit, ShimPhase, ShimStart, ShimStatus, ShimStop
from muster.protocol.refusal_codes import RefusalCode
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.test_termination import eventually

PYTHON = sys.executable
SAY = 'echo "$LEVEL $RANK $LOCAL_RANK"'
FAILS = """
trap 'echo warned; exit 9' TERM
touch here.$RANK
if [ $RANK = 5 ]; then
    until [ -e here.4 ] && [ -e here.6 ]; do sleep 0.01; done
    echo because >&2; exit 3
fi
while true; do sleep 0.01; done
"""
STAYS = FAILS.replace("trap 'echo warned; exit 9' TERM", "trap '' TERM")


def ranks(first: int, count: int) -> list[dict[str, str]]:
    return [{"RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(count)]


async def started(task: Spoken, start: ShimStart, **given: object) -> None:
    status = await task.prepared(launcher="processes", **given)
    assert status.phase is ShimPhase.PREPARED, status.refusal
    assert status.fingerprint is None  # nothing has imported torch
    await task.send(start)


def ends(status: ShimStatus) -> dict[int, ShimExit | None]:
    return {
        rank.rank: ShimExit(rank.exit.code, rank.exit.signal) if rank.exit else None
        for rank in status.ranks
    }


def test_each_rank_has_its_variables_and_its_files(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        start = ShimStart(["sh", "-c", SAY], {"LEVEL": "node"}, ranks=ranks(4, 3))
        await started(task, start)
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert [(r.rank, r.local_rank) for r in status.ranks] == [(4, 0), (5, 1), (6, 2)]
        assert ends(status) == dict.fromkeys((4, 5, 6), ShimExit(code=0))
        for rank in status.ranks:
            assert task.read(rank.stdout).decode() == f"node {rank.rank} {rank.local_rank}\n"

    stage.play(story)


def test_a_python_script_is_run_by_the_jobs_interpreter(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        words = ["-c", "import sys; print(sys.executable, sys.argv[1:])", "a b", "$HOME"]
        start = ShimStart(words, ranks=ranks(0, 1), interpreter=True)
        await started(task, start, python=sys.prefix)
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        said = task.read(status.ranks[0].stdout).decode()
        assert said.startswith(f"{sys.prefix}/bin/python")
        assert said.endswith("['a b', '$HOME']\n")

    any_stage.play(story)


def test_an_interpreter_that_is_not_there(any_stage: Stage, tmp_path: Path) -> None:
    """It is refused before the gate, as under torchrun, so that other nodes are tried."""
    (tmp_path / "no prefix").mkdir()
    (tmp_path / "text").touch(0o644)
    wrong = ["/no/such/venv", "no/such/venv", "no-such-python", str(tmp_path / "no prefix")]

    async def story(node: Node) -> None:
        for number, python in enumerate([*wrong, str(tmp_path / "text")]):
            task = await node.task(f"{number}.1.0")
            status = await task.prepared(launcher="processes", python=python)
            assert status.refusal is not None, python
            assert status.refusal.code == RefusalCode.NO_PYTHON
            why = "was not found" if python in wrong else "cannot run: Permission denied"
            assert status.refusal.text.startswith(f"The interpreter {python} {why}")

    any_stage.play(story)


def test_an_interpreter_that_goes_away_before_the_start(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        python = tmp_path / "python"
        python.touch(0o755)
        status = await task.prepared(launcher="processes", python=str(python))
        assert status.phase is ShimPhase.PREPARED
        python.unlink()
        await task.send(ShimStart(["train.py"], ranks=ranks(0, 2), interpreter=True))
        status = await task.ended()
        assert status.exit == ShimExit(code=127)
        assert status.refusal is not None
        assert status.refusal.text.startswith(f"The interpreter {python} was not found")
        assert status.running_s is None
        # A rank that was stopped before it could try ends by the signal.
        assert all(how in (ShimExit(127), ShimExit(signal=15)) for how in ends(status).values())
        assert ends(status)[status.first_failed or 0] == ShimExit(code=127)

    any_stage.play(story)


@pytest.mark.parametrize(
    ("script", "others"), [(FAILS, ShimExit(code=9)), (STAYS, ShimExit(signal=signal.SIGKILL))]
)
def test_the_first_that_fails_ends_the_others(stage: Stage, script: str, others: ShimExit) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        argv = ["sh", "-c", script]
        await started(task, ShimStart(argv, grace_s=1.0, ranks=ranks(4, 3)), cwd=str(task.dir))
        failed = await task.until(lambda status: status.first_failed is not None)
        if script == STAYS:
            assert failed.phase is ShimPhase.RUNNING  # reported at once, although its siblings live
        status = failed if failed.phase is ShimPhase.CLEANED else await task.ended()
        assert (status.first_failed, status.exit) == (5, ShimExit(code=3))
        assert status.stopped_by is None
        assert ends(status) == {4: others, 5: ShimExit(code=3), 6: others}
        assert [rank.error for rank in status.ranks if rank.rank == 5] == ["because"]

    stage.play(story)


RECORDS = """
import atexit, os, sys
from torch.distributed.elastic.multiprocessing.errors import record
atexit.register(print, "noise " * 1000, file=sys.stderr)
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the data are not there")
main()
"""


@pytest.mark.torch
def test_the_error_file_of_torch_is_the_error_of_the_rank(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        start = ShimStart(["-c", RECORDS], {"OMP_NUM_THREADS": "1"}, ranks=ranks(0, 2))
        start.interpreter, start.grace_s = True, 60
        await started(task, start, python=PYTHON)
        status = await task.ended()
        assert status.first_failed == 1
        error = status.ranks[1].error or ""
        assert error.startswith("Traceback")
        assert error.endswith("ValueError: the data are not there")
        assert (status.ranks[1].stderr_tail or "").endswith("noise")

    any_stage.play(story)


@pytest.mark.parametrize(
    "lay",
    [
        "ln -s $PWD/error.json $TORCHELASTIC_ERROR_FILE",
        "mkfifo $TORCHELASTIC_ERROR_FILE",
        "mkdir $TORCHELASTIC_ERROR_FILE",
        "echo '[1]' > $TORCHELASTIC_ERROR_FILE",
        "head -c 100000 /dev/zero | tr '\\0' [ > $TORCHELASTIC_ERROR_FILE",
    ],
)
def test_other_files_in_the_folder_are_not_read(any_stage: Stage, lay: str) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        (task.dir / "error.json").write_text('{"message": "of another"}')
        script = f"{lay} || exit 9; echo because >&2; exit 3"
        await started(task, ShimStart(["sh", "-c", script], ranks=ranks(0, 1)), cwd=str(task.dir))
        status = await task.ended()
        assert status.exit == ShimExit(code=3)
        assert status.ranks[0].error == "because"

    any_stage.play(story)


def test_a_stop_reaches_every_rank_once(stage: Stage) -> None:
    script = "trap 'echo warned; exit 9' USR1; echo up; while true; do sleep 0.01; done"

    async def story(node: Node) -> None:
        task = await node.task()
        await started(task, ShimStart(["sh", "-c", script], ranks=ranks(0, 3)))
        status = await task.phase(ShimPhase.RUNNING)
        await eventually(lambda: all(task.read(rank.stdout) for rank in status.ranks))
        await task.send(ShimStop("SIGUSR1", 20.0))
        status = await task.ended()
        assert status.stopped_by == "stop"
        assert status.first_failed is None
        assert ends(status) == dict.fromkeys(range(3), ShimExit(code=9))
        assert {task.read(rank.stdout) for rank in status.ranks} == {b"up\nwarned\n"}

    stage.play(story)


def test_a_rank_that_succeeds_does_not_stop_the_others(any_stage: Stage) -> None:
    script = "[ $RANK = 0 ] || until [ -e go ]; do sleep 0.01; done"

    async def story(node: Node) -> None:
        task = await node.task()
        start = ShimStart(["sh", "-c", script], ranks=ranks(0, 2))
        await started(task, start, cwd=str(task.dir))
        status = await task.until(lambda status: ends(status).get(0) is not None)
        assert ends(status) == {0: ShimExit(code=0), 1: None}
        assert status.exit is None
        (task.dir / "go").touch()
        assert (await task.ended()).exit == ShimExit(code=0)

    any_stage.play(story)


def test_many(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await started(task, ShimStart(["sh", "-c", "echo $RANK"], ranks=ranks(100, 40)))
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        said = b"".join(task.read(rank.stdout) for rank in status.ranks)
        assert said.split() == [b"%d" % rank for rank in range(100, 140)]

    any_stage.play(story)


LEASED = """
import fcntl, os, signal, sys, time

ready, go = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    log = os.open("/proc/self/fd/2", os.O_RDWR)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    while True:
        try:
            fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            break
        except BlockingIOError:
            time.sleep(0.01)
    os.write(go, b"1")
    signal.pause()
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 1)
os.dup2(null, 2)
os.read(ready, 1)
os._exit(3)
"""


def test_a_job_that_keeps_its_log_for_itself_does_not_stop_its_shim(any_stage: Stage) -> None:
    """The kernel makes a process that opens a leased file wait for lease-break-time: 45 s."""

    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared(launcher="processes")
        await task.send(ShimStart(argv=[PYTHON, "-c", LEASED], ranks=[{"RANK": "0"}]))
        async with asyncio.timeout(180):
            status = await task.ended()
        assert status.exit == ShimExit(code=3)

    any_stage.play(story)
