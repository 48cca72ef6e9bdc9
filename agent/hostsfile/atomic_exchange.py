"""Linux primitives for a file with several writers: name exchange, locks, leases."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.shim.system.libc import libc

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_PAUSE_FIRST_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.02


def exchange(one: Path, other: Path) -> None:
    """Exchange two names atomically. Raises OSError: EBUSY for a mount point, EINVAL if the file
    system does not support it.
    """
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = libc.renameat2(
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(one),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(other),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def lock(fd: int, until: float) -> bool:
    """Take both kinds of locks, flock's and fcntl's. Closing `fd` releases them.

    Returns False if another process holds one of them until `until` (monotonic seconds).
    """
    return _try(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), until) and _try(
        lambda: _lock_records(fd), until
    )


def quiet(fd: int, until: float) -> bool:
    """Wait until no process has the file open for writing; `fd` is open for reading only.

    Returns False if one still has at `until`. Returns True if the file system does not report it.
    """
    try:
        return _leased(fd, fcntl.F_RDLCK, until)
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def hold(fd: int, until: float) -> bool:
    """Block other openers of the file until `fd`, which is open for writing, is closed.

    Returns False if another process has it open at `until`, or if the file system lacks leases.
    """
    try:
        return _leased(fd, fcntl.F_WRLCK, until)
    except OSError:
        return False


def _leased(fd: int, kind: int, until: float) -> bool:
    # The kernel signals that another process opens the file. Use a harmless signal, because the
    # default SIGIO would kill this process.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    return _try(lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, kind), until)


def _lock_records(fd: int) -> None:
    # struct flock: type, whence, start, length (0: all), pid.
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole)


def _try(call: Callable[[], object], until: float) -> bool:
    pause_s = _PAUSE_FIRST_S
    while True:
        try:
            call()
        except BlockingIOError:
            pass
        else:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
