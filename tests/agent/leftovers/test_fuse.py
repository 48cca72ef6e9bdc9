"""Processes that wait for a FUSE file system of their own after SIGKILL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.leftovers.fuse import abort_fuse
from agent.shim.system import syscalls
from tests.cluster.jobs import until
from tests.fuse import SELF_SERVED, fusectl

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
