"""Real processes, watched: what they write, send and compute, and when they stop."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.core.activity_baseline import ActivityBaseline, ActivitySample
from agent.core.inputs import Input, TaskObserved
from agent.core.shim_protocol import ShimExit, ShimPhase, ShimRank, ShimStatus
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.hangs.procfs import Processes
from agent.monitors.hangs.py_spy import stacks_of
from agent.monitors.hangs.sock_diag import connections
from agent.probe import py_spy_check
from agent.shims.members import ENDED, Process
from agent.taskdirs.taskdirs import TaskUser
from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.observations.hangs import Doing, RankActivity, Sign
from tests.agent.shims.shim_of import be_shim_of

TASK = TaskId("1.1.0")
SLEEPS = """
import sys, time
def wait_here():
    print("ready", flush=True)
    time.sleep(600)
wait_here()
"""


COMPUTES = """
print("ready", flush=True)
while True:
    pass
"""


# Sends until SIGUSR1; then says so as soon as everything it has sent is acknowledged.
SENDS = """
import fcntl, signal, socket, struct, termios, time
sending = True
def stop(*_):
    global sending
    sending = False
signal.signal(signal.SIGUSR1, stop)
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
print("ready", flush=True)
while sending:
    near.sendall(b"x" * 1000)
    far.recv(1000)
while struct.unpack("i", fcntl.ioctl(near, termios.TIOCOUTQ, bytes(4)))[0]:
    time.sleep(0.01)
print("quiet", flush=True)
while True:
    pass
"""


class Now:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.mono = 100.0

    def now(self) -> Instant:
        return Instant(self.mono, 0.0)


@contextmanager
def program(text: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a program and wait for its `ready`."""
    argv = [sys.executable, "-c", text]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def shim(tmp_path: Path) -> None:
    """This process: its children are ranks."""
    be_shim_of(tmp_path)


def known(pid: int) -> Process:
    stat = Processes().stat(pid)
    assert stat is not None
    return Process(pid, stat.began)


def status(pid: int) -> ShimStatus:
    rank = ShimRank(rank=0, local_rank=0, pid=pid, stdout="logs/out", stderr="logs/err")
    over = ShimRank(
        rank=1, local_rank=1, stdout="logs/out-1", stderr="logs/err-1", exit=ShimExit(0)
    )
    return ShimStatus(task=TASK, phase=ShimPhase.RUNNING, ranks=(rank, over))


def test_a_rank_that_falls_silent_is_reported_once(tmp_path: Path) -> None:
    clock, posted = Now(), list[Input]()
    watch = HangMonitor(clock, posted.append, 5.0, root=tmp_path)
    (tmp_path / "logs").mkdir()
    out = tmp_path / "logs" / "out"
    out.write_bytes(b"")

    async def look() -> None:
        clock.mono += 5.0
        await watch.look()

    with program(SLEEPS) as process:
        watch.heard(TASK, tmp_path, status(process.pid))
        for _ in range(4):
            with out.open("ab") as file:
                file.write(b"step\n" * 100)
            asyncio.run(look())
        for _ in range(6):
            asyncio.run(look())
        activity = watch.activity(TASK)
        watch.heard(TASK, tmp_path, status(process.pid))
    assert activity is not None
    ((rank, *gone), at) = activity
    assert at == clock.mono
    assert rank.still_s == pytest.approx(30.0)
    assert rank.idle_s == pytest.approx(30.0)
    assert rank.doing is Doing.SLEEPS
    assert Sign.LOG in rank.signs
    assert [one.doing for one in gone] == [Doing.GONE]
    seen = [one.changes.activity or () for one in posted if isinstance(one, TaskObserved)]
    quiet = [ranks for ranks in seen if ranks[0].still_s is not None]
    assert len(quiet) == 1
    assert len(seen) <= 4


@pytest.mark.parametrize("port", ["1" * 5000, "\u0661" * 4, "-1", ""])
def test_a_rank_may_have_any_environment(tmp_path: Path, port: str) -> None:
    """A program may replace its own environment. int() refuses more than 4,300 digits."""
    watch = HangMonitor(Now(), list[Input]().append, 5.0, root=tmp_path)
    (tmp_path / "logs").mkdir()
    with program(
        SLEEPS, {**os.environ, "MASTER_PORT": port, "NCCL_IB_HCA": "=" + "," * 5000}
    ) as it:
        watch.heard(TASK, tmp_path, status(it.pid))
        asyncio.run(watch.look())
        assert watch.activity(TASK) is not None


def test_that_all_ranks_of_a_node_have_ended_is_reported_once(tmp_path: Path) -> None:
    """Its torchrun waits for those of other nodes meanwhile."""
    clock, posted = Now(), list[Input]()
    watch = HangMonitor(clock, posted.append, 5.0, root=tmp_path)

    def look() -> None:
        clock.mono += 5.0
        asyncio.run(watch.look())

    with program(SLEEPS) as process:
        running = status(process.pid)
        watch.heard(TASK, tmp_path, running)
        look()
        rank = dataclasses.replace(running.ranks[0], exit=ShimExit(0))
        watch.heard(TASK, tmp_path, dataclasses.replace(running, ranks=(rank,)))
        for _ in range(3):
            look()
    seen = [one.changes.activity or () for one in posted if isinstance(one, TaskObserved)]
    assert [[rank.doing for rank in ranks] for ranks in seen[-1:]] == [[Doing.GONE]]
    assert len([ranks for ranks in seen if ranks[0].doing is Doing.GONE]) == 1
    assert seen[-1][0].idle_s == pytest.approx(5.0)


def test_a_rank_that_was_quiet_is_so_for_the_next_agent_until_it_moves(tmp_path: Path) -> None:
    clock = Now()
    (tmp_path / "logs").mkdir()
    out = tmp_path / "logs" / "out"
    out.write_bytes(b"")

    def look(watch: HangMonitor, *, writes: bool, after_s: float = 5.0) -> RankActivity:
        if writes:
            with out.open("ab") as file:
                file.write(b"step\n" * 100)
        clock.mono += after_s
        asyncio.run(watch.look())
        activity = watch.activity(TASK)
        assert activity is not None
        return activity[0][0]

    def agent(process: subprocess.Popen[str]) -> HangMonitor:
        watch = HangMonitor(clock, list[Input]().append, 5.0, root=tmp_path)
        watch.heard(TASK, tmp_path, status(process.pid))
        return watch

    with program(COMPUTES) as process:
        watch = agent(process)
        deadline = time.monotonic() + 60.0
        # However little of the processor it gets.
        while not look(watch, writes=True, after_s=0.05).learned:
            assert time.monotonic() < deadline
        assert look(agent(process), writes=False).still_s is None
        quiet = [look(watch, writes=False).still_s for _ in range(4)][-1]
        assert quiet is not None
        # The later watch adds to the reported time, without the gap in which nobody looked.
        later = agent(process)
        assert look(later, writes=False, after_s=600.0).still_s == pytest.approx(15.0)
        assert look(later, writes=True).still_s is None


@pytest.mark.parametrize("ranks", [2, 4], ids=("alone", "of two nodes"))
def test_a_rank_without_sockets_speaks_through_those_of_its_node(
    tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections() is None:
        pytest.skip("the kernel tells nothing of sockets here")
    monkeypatch.setattr("agent.monitors.hangs.monitor.MUTE_S", 1.0)
    clock = Now()
    environ = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": "2"}
    watch = HangMonitor(clock, list[Input]().append, 5.0, root=tmp_path)

    def look(after_s: float) -> list[RankActivity]:
        clock.mono += after_s
        asyncio.run(watch.look())
        activity = watch.activity(TASK)
        assert activity is not None
        return list(activity[0])

    with program(SENDS, environ) as sends, program(COMPUTES, environ) as computes:
        pair = [
            ShimRank(rank=n, local_rank=n, pid=one.pid, stdout=f"logs/{n}", stderr=f"logs/{n}e")
            for n, one in enumerate((sends, computes))
        ]
        watch.heard(TASK, tmp_path, ShimStatus(TASK, ShimPhase.RUNNING, ranks=tuple(pair)))
        deadline = time.monotonic() + 60.0
        while not look(0.05)[0].learned:
            assert time.monotonic() < deadline
        at = clock.mono
        while (ranks == 4 or clock.mono < at + 3.0) and not look(0.05)[1].learned:
            assert time.monotonic() < deadline
        assert look(0.05)[1].learned is (ranks == 4)
        os.kill(sends.pid, signal.SIGUSR1)
        assert sends.stdout is not None
        assert sends.stdout.readline() == "quiet\n"
        look(5.0)
        quiet = [look(5.0) for _ in range(4)][-1]
        assert (quiet[0].still_s or 0.0) > 19.0
        assert (quiet[1].still_s == quiet[0].still_s) is (ranks == 4)


def test_activity_caused_by_a_sample_is_no_progress(tmp_path: Path) -> None:
    clock = Now()
    watch = HangMonitor(clock, list[Input]().append, 5.0, root=tmp_path)
    (tmp_path / "logs").mkdir()
    out = tmp_path / "logs" / "out"
    out.write_bytes(b"")

    def look(*, writes: bool) -> None:
        if writes:
            with out.open("ab") as file:
                file.write(b"step\n" * 100)
        clock.mono += 5.0
        asyncio.run(watch.look())

    def still() -> float | None:
        activity = watch.activity(TASK)
        assert activity is not None
        return activity[0][0].still_s

    with program(SLEEPS) as process:
        watch.heard(TASK, tmp_path, status(process.pid))
        with watch.asking(TaskId("2.1.0")):
            look(writes=True)  # nobody has asked this one
        for writes in (True, True, False, False, False):
            look(writes=writes)
        assert still() == pytest.approx(15.0)
        with watch.asking(TASK):
            look(writes=True)
            with watch.asking(TASK):
                pass
            look(writes=True)
        look(writes=True)  # of what it was asked for some is written just before it
        # It is not quiet for longer, either.
        assert still() == pytest.approx(15.0)
        look(writes=True)
        assert still() is None


def test_children_are_part_of_their_rank() -> None:
    text = "import subprocess,sys;c=subprocess.Popen(['sleep','600']);print('ready',flush=True)"
    text += ";c.wait()"
    with program(text) as process:
        found = Processes().look([process.pid])
        (child,) = set(found[process.pid]) - {process.pid}
        assert Processes().stat(child) is not None
        os.kill(child, signal.SIGKILL)


def test_a_process_that_is_stopped_is_seen_to_be() -> None:
    with program(SLEEPS) as process:
        processes = Processes()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert processes.doing(process.pid, threads=True)[0] is Doing.STOPPED
    assert processes.doing(process.pid, threads=True)[0] is Doing.GONE


def test_bytes_of_a_connection_are_exact() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as near:
            far, _ = listener.accept()
            with far:
                inode = os.fstat(far.fileno()).st_ino
                before = connections()
                if before is None:
                    pytest.skip("the kernel tells nothing of sockets here")
                assert inode in (Processes().sockets([os.getpid()]) or ())
                near.sendall(b"x" * 100_000)
                left = 100_000
                while left:
                    left -= len(far.recv(left))
                after = connections()
                assert after is not None
                assert after[inode].bytes - before[inode].bytes == 100_000
                assert listener.getsockname()[1] in after[inode].ports


@pytest.mark.skipif(py_spy_check.find() is None, reason="py-spy is not installed")
def test_stacks_of_a_process_and_of_one_that_is_none() -> None:
    with program(SLEEPS) as process, subprocess.Popen(["sleep", "600"]) as other:
        ranks = {
            3: known(process.pid),
            4: known(other.pid),
            5: Process(2**22 + 1, problem=ENDED),
            6: Process(process.pid, known(process.pid).began + 1),
        }
        user = TaskUser(os.geteuid(), os.getegid())
        good, no_python, gone, reused = asyncio.run(stacks_of(ranks, user, threads=True))
        other.kill()
    assert good.main[0].name == "wait_here"
    assert (good.main[0].file, good.main[0].line) == ("<string>", 5)
    assert no_python.main == ()
    assert no_python.problem
    assert gone.problem == reused.problem == ENDED
    assert reused.main == ()


def test_a_cadence_is_kept_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    clock = Now()
    (tmp_path / "logs").mkdir()
    out = tmp_path / "logs" / "out"
    with program("print('ready',flush=True)\nwhile True: pass") as process:
        watch = HangMonitor(clock, lambda _: None, 5.0, root=tmp_path)
        watch.heard(TASK, tmp_path, status(process.pid))
        before = None
        deadline = time.monotonic() + 60.0
        # However little of the processor it gets.
        while before is None or not before[0][0].learned:
            assert time.monotonic() < deadline
            with out.open("ab") as file:
                file.write(b"step\n")
            clock.mono += 0.05
            asyncio.run(watch.look())
            before = watch.activity(TASK)
        again = HangMonitor(clock, lambda _: None, 5.0, root=tmp_path)
        again.heard(TASK, tmp_path, status(process.pid))
        asyncio.run(again.look())
        after = again.activity(TASK)
    assert after is not None
    assert after[0][0].learned


def test_a_machine_that_stood_still_is_no_evidence() -> None:
    cadence = ActivityBaseline(0, 5.0, 0.0)
    for step in range(1, 10):
        cadence.take(ActivitySample(step * 5.0, {Sign.LOG: 1000}, 4.0))
    cadence.take(ActivitySample(600.0, {Sign.LOG: 0}, 0.0))
    activity = cadence.activity()
    assert activity.learned
    assert activity.still_s is None


def test_a_debuggers_hand_and_reading_libraries_teach_nothing() -> None:
    cadence = ActivityBaseline(0, 5.0, 0.0)
    for step in range(1, 30):
        cadence.take(ActivitySample(step * 5.0, {Sign.DISK: 10**9}, 4.0))
    assert not cadence.activity().learned
