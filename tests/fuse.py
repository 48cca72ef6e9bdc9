"""A FUSE file system that its own process waits for, and the files by which it is aborted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

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
