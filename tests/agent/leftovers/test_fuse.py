"""Processes that wait for a FUSE file system of their own after SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.leftovers.fuse import abort_fuse
from agent.shim.system import syscalls
from tests.cluster.jobs import until
from tests.fuse import IN_EXEC, SELF_SERVED, fusectl

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.root


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Path]:
    with fusectl(tmp_path / "fusectl") as made:
        yield made


@pytest.fixture
def stuck(tmp_path: Path, connections: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that SIGKILL does not end."""
    mark = tmp_path / "waits"
    mount = tmp_path / "mount"
    mount.mkdir()
    argv = ["unshare", "-m", sys.executable, "-c", SELF_SERVED, str(mount), str(mark)]
    with subprocess.Popen(argv) as child:
        try:
            until(mark.exists, "its request is being served")
            child.kill()
            yield child
        finally:
            abort_fuse([child.pid], connections)
            child.kill()


def test_they_end_once_the_connection_is_aborted(
    stuck: subprocess.Popen[bytes], connections: Path
) -> None:
    until(lambda: syscalls.doomed(stuck.pid), "the kernel holds it")
    with pytest.raises(subprocess.TimeoutExpired):
        stuck.wait(0.5)
    (number,) = abort_fuse([stuck.pid], connections)
    assert stuck.wait() == -9
    assert not (connections / str(number)).exists()


READERS = """
import sys
from pathlib import Path
from agent.leftovers.fuse import abort_fuse
from agent.leftovers.processes import leftover_processes
from agent.monitors.hangs.procfs import Processes
from agent.shim.system import syscalls
from agent.shim.system.process_tree import ProcessTree, signal_exactly
parent, pid = map(int, sys.argv[1:3])
assert pid in ProcessTree(None, parent).members()
assert ProcessTree(None, parent).has(pid)
assert not syscalls.exiting(pid, 1)
assert not syscalls.doomed(pid)
assert list(syscalls.values_of(syscalls.environment_of(pid), "PATH")) == []
leftover_processes()
processes = Processes()
assert pid in processes.look([parent])[parent]
assert processes.doing(pid, threads=True)[0].value == "disk"
processes.disk_bytes(pid), processes.environment(pid, "PATH"), processes.cpu_s([pid])
assert signal_exactly(pid, ProcessTree(None, parent).members()[pid], 9)
assert syscalls.doomed(pid)
assert abort_fuse([pid], Path(sys.argv[3]))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program has numbers of x86_64")
def test_nobody_waits_for_a_process_that_waits_in_exec(tmp_path: Path, connections: Path) -> None:
    """The kernel lets readers of its `stat`, `environ`, `io` and `wchan` wait with it."""
    mark, mount = tmp_path / "waits", tmp_path / "mount"
    mount.mkdir()
    argv = ["unshare", "-m", sys.executable, "-c", IN_EXEC, str(mount), str(mark)]
    with subprocess.Popen(argv) as child:
        try:
            until(mark.exists, "the read has begun")
            pid = int(mark.read_text())
            until(lambda: syscalls.state_of(pid) == ("D", child.pid, False), "it is in exec")
            reader = [sys.executable, "-c", READERS, str(child.pid), str(pid), str(connections)]
            subprocess.run(reader, check=True, timeout=30, cwd=ROOT)
        finally:
            # The links of the server can be read.
            abort_fuse([child.pid], connections)
            child.kill()


def test_a_mount_of_the_machine_is_left_alone(tmp_path: Path, connections: Path) -> None:
    """The task sees it in its copy of the machine's mounts."""
    script = (
        "import ctypes, os, sys\n"
        "fd = os.open('/dev/fuse', os.O_RDWR)\n"
        "options = f'fd={fd},rootmode=40000,user_id=0,group_id=0'.encode()\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.mount(b'x', sys.argv[1].encode(), b'fuse', 0, options) == 0\n"
        "print('mounted', flush=True)\n"
        "sys.stdin.read()\n"
    )
    mount = tmp_path / "mount"
    mount.mkdir()
    argv = [sys.executable, "-c", script, str(mount)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        try:
            with subprocess.Popen(["unshare", "-m", "cat"], stdin=pipe) as task:
                until(lambda: _comm(task.pid) == "cat", "it has mounts of its own")
                assert abort_fuse([task.pid], connections) == []
                task.kill()
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_process_that_has_gone_has_no_mounts() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert abort_fuse([child.pid]) == []


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
