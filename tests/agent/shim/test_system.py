"""The shim's reading of kernel state: ports, processes, cgroups."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.shim.system import port_probe, syscalls
from agent.shim.system.cgroup import Cgroup, own_cgroup
from agent.shim.system.port_probe import listening
from agent.shim.system.process_tree import ProcessTree, signal_exactly

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_a_port_counts_once_it_listens(family: int, address: str) -> None:
    try:
        server = socket.socket(family)
        server.bind((address, 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        port = server.getsockname()[1]
        assert not listening(port)
        server.listen()
        assert listening(port)
        # A connection to it has the same number at one end, and listens no longer.
        if family == socket.AF_INET:
            with socket.create_connection((address, port)):
                server.close()
                assert not listening(port)


def test_a_listener_of_another_user_does_not_count(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    owner = 47_112
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        f"   0: 00000000:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {owner} 0 9\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port_probe, "TABLES", (str(table),))
        assert not listening(20_001, owner - 1)
        assert listening(20_001, owner)
        assert listening(20_001)


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    stat = syscalls.stat_of(child.pid)
    assert stat is not None
    assert stat[1] == os.getpid()
    # The same pid with another start time is another process.
    assert not signal_exactly(child.pid, stat[2] + 1, signal.SIGKILL)
    assert child.poll() is None
    assert child.pid in syscalls.descendants(os.getpid())
    assert not syscalls.exiting(child.pid, stat[2])
    assert signal_exactly(child.pid, stat[2], signal.SIGKILL)
    # Until it is waited for it is a zombie, and no living descendant.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid not in syscalls.descendants(os.getpid())
    assert syscalls.exiting(child.pid, stat[2])
    assert child.wait() == -signal.SIGKILL
    assert not signal_exactly(child.pid, stat[2], signal.SIGKILL)


def test_a_cgroup_holds_whom_it_bore_and_kills_them() -> None:
    group = Cgroup.make(None, f"test-{os.getpid()}")
    if group is None:
        pytest.skip(f"cgroup v2 cannot be written here: {own_cgroup()}")
    assert not group.populated()
    # In a process of its own: a fork of the test runner would run its exit handlers.
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from agent.shim.system.cgroup import Cgroup\n"
        f"pid = Cgroup({group.path!r}).fork()\n"
        "if pid == 0: os.execvp('sleep', ['sleep', '1000'])\n"
        "print(pid, flush=True); os.waitpid(pid, 0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert group.members() == [pid]
    assert group.populated()
    assert not group.remove()
    assert group.kill()
    assert parent.wait() == 0
    assert not group.populated()
    assert group.remove()
    assert not Path(group.path).exists()


def test_a_folder_that_is_no_cgroup_is_not_used(tmp_path: Path) -> None:
    assert Cgroup.make(str(tmp_path), "task") is None
    assert list(tmp_path.iterdir()) == []


def test_the_template_imports_the_standard_library_only() -> None:
    """-I -S hides everything else, and it stays small: each shim is a copy of it."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import agent.shim.fork_server\n"
        "heavy = {'asyncio', 'subprocess', 'logging', 'inspect', 'dataclasses', 'tempfile'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"[]\n"


def test_a_signal_reaches_no_process_outside_of_the_task() -> None:
    """A job names the pids: its shim is here a child of this process, without any of its own."""
    with subprocess.Popen(["sleep", "600"]) as shim, subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert (
                ProcessTree(None, shim.pid).signal([other.pid, os.getpid(), 1], signal.SIGKILL)
                == []
            )
            assert other.poll() is None
            foreign = (other.pid, os.getpid(), 1, 0, -1, 2**40, None, "x")
            assert not any(map(ProcessTree(None, shim.pid).has, foreign))
            assert ProcessTree(None).has(other.pid)
            assert ProcessTree(None).signal([other.pid], signal.SIGKILL) == [other.pid]
        finally:
            shim.kill()
            other.kill()


SHOWS_ITS_MEMORY = """
import ctypes, mmap, sys
# struct prctl_mm_map of linux/prctl.h, and prctl(PR_SET_MM, PR_SET_MM_MAP, ...)
NAMES = ("start_code end_code start_data end_data start_brk brk start_stack arg_start arg_end "
         "env_start env_end auxv").split()
fields = [(name, ctypes.c_uint64) for name in NAMES]
Map = type("Map", (ctypes.Structure,), {"_fields_": [
    *fields, ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]})
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
code, data = stat[23:25], stat[42:44]
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
brk = int(stat[44])
new = Map(int(code[0]), int(code[1]), int(data[0]), int(data[1]), brk,
          brk, int(stat[25]), int(stat[45]), int(stat[46]), start, start + size, 0, 0, 0xFFFFFFFF)
libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(35, 14, ctypes.byref(new), ctypes.c_ulong(ctypes.sizeof(new)), 0)
print(ctypes.get_errno() if done else "ready", flush=True)
sys.stdin.read()
"""


def test_an_environment_is_read_up_to_its_possible_size() -> None:
    """A process can have the kernel show any of its memory as its environment."""
    size = 4 * syscalls.ENVIRONMENT_BYTES_MAX
    argv = [sys.executable, "-c", SHOWS_ITS_MEMORY, str(size)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shows:
        assert shows.stdout is not None
        said = shows.stdout.readline().strip()
        found = len(syscalls.environment_of(shows.pid))
        shows.kill()
    if said != "ready":
        pytest.skip(f"the kernel refuses: {os.strerror(int(said))}")
    assert found == syscalls.ENVIRONMENT_BYTES_MAX + 1


def test_values_of_a_variable() -> None:
    found = b"\0RANK=1\0OLD_RANK=2\0RANK=3\0RANK=12"
    assert list(syscalls.values_of(found, "RANK")) == [b"1", b"3"], "the last one was cut"
    assert list(syscalls.values_of(b"\0RANK=\0", "RANK")) == [b""]
    assert list(syscalls.values_of(b"\0" + b"RANK=7\0" * 10**6, "RANK")) == [b"7"] * 64
