"""Processes that should end: which ones live, and which will never run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.shim.system import syscalls
from agent.shim.system.process_tree import ProcessTree
from tests.cluster.jobs import until

# Its first thread ends; another one lives on.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(10000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HEADLESS]) as child:
        try:
            until(lambda: letter(child.pid) == "Z", "its first thread has ended")
            yield child
        finally:
            child.kill()


def letter(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_whose_first_thread_has_ended_lives(headless: subprocess.Popen[bytes]) -> None:
    """Beside a GPU driver that hangs it is the common sight: the thread that is held is another."""
    stat = syscalls.stat_of(headless.pid)
    assert stat is not None
    assert stat[0] == "L"
    assert headless.pid in syscalls.descendants(os.getpid())
    assert not syscalls.doomed(headless.pid)
    headless.kill()
    os.waitid(os.P_PID, headless.pid, os.WEXITED | os.WNOWAIT)
    stat = syscalls.stat_of(headless.pid)
    assert stat is not None
    assert stat[0] == "Z"
    assert syscalls.doomed(headless.pid)


def test_a_living_process_that_was_not_killed_may_run_on() -> None:
    with subprocess.Popen(["sleep", "10000"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert not syscalls.doomed(child.pid)
        assert not ProcessTree(None).doomed()
        child.kill()
    assert syscalls.doomed(child.pid)


def test_a_sigkill_that_waits_dooms(freezer: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HEADLESS]) as child:
        (freezer / "cgroup.procs").write_text(str(child.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        try:
            until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
            assert not syscalls.doomed(child.pid)
            child.kill()
            assert syscalls.doomed(child.pid)
        finally:
            (freezer / "freezer.state").write_text("THAWED")
            child.kill()
