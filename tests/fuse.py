"""A FUSE file system that its own process waits for, and the files by which it is aborted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.jobs import until

SELF_SERVED: Final = r"""
import ctypes, os, struct, sys, threading
mount, mark = sys.argv[1:]
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
if libc.mount(b"own", mount.encode(), b"fuse", 6, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
request = os.read(fd, 1 << 17)
unique = struct.unpack_from("<Q", request, 8)[0]
init = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0)
os.write(fd, struct.pack("<IiQ", 16 + len(init), 0, unique) + init)
threading.Thread(target=os.stat, args=(mount + "/x",), daemon=True).start()
os.read(fd, 1 << 17)
with open(mark + ".new", "w") as file:
    file.write(f"{os.getpid()}\n")
os.rename(file.name, mark)
threading.Event().wait()
"""
"""A program: it mounts the file system at its first argument, begins a request that it never
answers, and then writes its pid to the file that its second argument names."""


@contextlib.contextmanager
def fusectl(folder: Path) -> Iterator[Path]:
    """Mount the kernel's files about FUSE connections at `folder`, which may exist."""
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "fusectl", "none", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("no file system of FUSE connections can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


IN_EXEC: Final = r"""
import ctypes, mmap, os, struct, sys, threading
mount, mark = sys.argv[1:]
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
options = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid}".encode()
if libc.mount(b"own", mount.encode(), b"fuse", 6, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")

def attributes(node, mode):
    numbers = node, 1 << 20, 8, *[0] * 6, mode, 1, uid, gid, 0, 4096, 0
    return struct.pack("<QQQQQQIIIIIIIIII", *numbers)

def serve():
    while True:
        kind, unique, node = struct.unpack_from("<4xIQQ", os.read(fd, 1 << 17))
        file, folder = attributes(2, 0o100644), attributes(1, 0o40755)
        answer = {
            26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 1 | 1 << 15, 0, 0, 4096, 0, 0, 0, 0),
            1: struct.pack("<QQQQII", 2, 0, 9999, 9999, 0, 0) + file,
            3: struct.pack("<QII", 9999, 0, 0) + (folder if node == 1 else file),
            14: struct.pack("<QII", 1, 0, 0),
        }.get(kind)
        if answer is not None:
            os.write(fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
        elif kind == 15:  # READ is never answered.
            with open(mark + ".new", "w") as note:
                note.write(f"{reader}\n")
            os.rename(note.name, mark)
        elif kind not in (2, 42):
            os.write(fd, struct.pack("<IiQ", 16, -38, unique))

threading.Thread(target=serve, daemon=True).start()
file = os.open(mount + "/x", os.O_RDONLY | os.O_DIRECT)
told, tell = os.pipe()
reader = os.fork()
if reader == 0:
    os.read(told, 1)
    page = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    context = ctypes.c_ulong(0)
    if libc.syscall(206, 1, ctypes.byref(context)):  # io_setup
        os._exit(8)
    block = struct.pack("<QIIHhIQQqQII", 0, 0, 0, 0, 0, file, address, 4096, 0, 0, 0, 0)
    request = ctypes.create_string_buffer(block, 64)
    if libc.syscall(209, context, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(request)))) != 1:
        os._exit(7)  # io_submit
    os.execv("/bin/sleep", ["sleep", "1000"])
os.write(tell, b"x")
os.waitpid(reader, 0)
"""
"""A program: its child begins a read that is never answered, and then an exec, which waits for the
read while it holds a lock for which readers of /proc wait. When the read has begun, the child's pid
is in the file that the second argument names. x86_64 only."""


DYING: Final = r"""
import ctypes, os, struct, subprocess, sys, threading
mount, mark, *argv = sys.argv[1:]
fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
options = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid}".encode()
if libc.mount(b"own", mount.encode(), b"fuse", 6, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")

def attributes(node, mode):
    numbers = node, 1 << 20, 8, *[0] * 6, mode, 1, uid, gid, 0, 4096, 0
    return struct.pack("<QQQQQQIIIIIIIIII", *numbers)

def note(name):
    with open(mark + ".new", "w") as file:
        file.write(f"{child.pid}\n")
    os.rename(file.name, name)

def serve():
    while True:
        kind, unique, node = struct.unpack_from("<4xIQQ", os.read(fd, 1 << 17))
        file, folder = attributes(2, 0o100644), attributes(1, 0o40755)
        answer = {
            26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0),
            1: struct.pack("<QQQQII", 2, 0, 9999, 9999, 0, 0) + file,
            3: struct.pack("<QII", 9999, 0, 0) + (folder if node == 1 else file),
            14: struct.pack("<QII", 1, 0, 0),
        }.get(kind)
        if answer is not None:
            os.write(fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
        elif kind == 25:  # FLUSH
            if held:
                note(mark + ".dying")
                sys.stdin.read()
            os.write(fd, struct.pack("<IiQ", 16, 0, unique))
        elif kind not in (2, 42):
            os.write(fd, struct.pack("<IiQ", 16, -38, unique))

held = False
threading.Thread(target=serve, daemon=True).start()
file = os.open(mount + "/x", os.O_RDONLY)
child = subprocess.Popen(argv, pass_fds=[file])
# Otherwise this program could not end either.
os.close(file)
held = True
note(mark)
child.wait()
"""
"""A program: it runs the command of its further arguments as a child that cannot end once it is
killed: it has lost its memory, and waits for the end of a request when it closes its files. The
child's pid is in the file that the second argument names once it runs, and in that with `.dying`
once it is held. It ends once the input of this program does."""


@contextlib.contextmanager
def dying(folder: Path, *argv: str | Path) -> Iterator[tuple[int, Path]]:
    """Run a command that the kernel will hold once it is killed. Yields its pid, and the file that
    appears once it is held."""
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here")
    (folder / "mount").mkdir()
    runs = folder / "pid"
    server = ["unshare", "--mount", sys.executable, "-c", DYING, str(folder / "mount"), str(runs)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*server, *map(str, argv)], stdin=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        until(lambda: runs.exists() or process.poll() is not None, "the command runs")
        if not runs.exists():
            pytest.skip(f"no file system can be mounted here: {process.stderr.read()}")
        pid = int(runs.read_text())
        try:
            yield pid, folder / "pid.dying"
        finally:
            os.kill(pid, signal.SIGKILL)
            process.stdin.close()
            process.wait()
