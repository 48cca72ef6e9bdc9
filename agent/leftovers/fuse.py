"""FUSE connections that keep processes of an ended task from dying.

A program may serve a FUSE file system to itself. After SIGKILL, its thread waits in the kernel for
an answer that no thread will give any more, for ever. Aborting the connection ends the wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from agent.shim.system.syscalls import state_of

CONNECTIONS: Final = Path("/sys/fs/fuse/connections")
_DEADLINE_S: Final = 5.0
_MOUNTS_BYTES_MAX: Final = 8 << 20

_log = structlog.get_logger("agent.leftovers.fuse")


def abort_fuse(pids: Iterable[int], connections: Path = CONNECTIONS) -> list[int]:
    """Abort the FUSE connections of these processes' own mounts; return their numbers. Blocks.

    A mount that the machine has, too, is not theirs.
    """
    until = time.monotonic() + _DEADLINE_S
    found: set[int] = set()
    namespaces: set[str] = set()
    for pid in pids:
        if time.monotonic() > until:
            break
        state = state_of(pid)
        if state is not None and not state[2]:
            # Reading its link would wait as well.
            found |= _fuse_mounts(f"/proc/{pid}")
            continue
        for thread in _threads(pid):
            try:
                namespace = os.readlink(f"{thread}/ns/mnt")
            except OSError:
                # A thread that has ended has none; another one may be held.
                continue
            if namespace not in namespaces:
                namespaces.add(namespace)
                found |= _fuse_mounts(thread)
            break
    own = found and found - _fuse_mounts("/proc/1") - _fuse_mounts("/proc/self")
    return [number for number in sorted(own) if _abort(number, connections)]


def _threads(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _fuse_mounts(process: str) -> set[int]:
    """The connection numbers of the FUSE mounts that a process sees."""
    try:
        with open(f"{process}/mountinfo", "rb") as file:
            lines = file.read(_MOUNTS_BYTES_MAX).splitlines()
    except OSError:
        return set()
    found = set()
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        kind = rest.partition(b" ")[0]
        major, _, minor = fields.split(b" ")[2].partition(b":")
        # A file system of a program has no device, so its number is that of its connection.
        if (kind == b"fuse" or kind.startswith(b"fuse.")) and major == b"0":
            found.add(int(minor))
    return found


def _abort(number: int, connections: Path) -> bool:
    try:
        (connections / str(number) / "abort").write_text("1")
    except OSError as error:
        _log.error("fuse_not_aborted", connection=number, why=error.strerror)
        return False
    _log.warning("fuse_aborted", connection=number)
    return True
