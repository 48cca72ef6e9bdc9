"""Open files whose name or folder a job's user can change.

The name is opened once, as a handle without effect on the file: no wait for a pipe, no start of a
device. The handle is checked, and the file is opened through the handle. So replacing the name in
between has no effect.
"""

from __future__ import annotations

import os
import stat

# Neither follows a link nor opens the file itself.
HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ALWAYS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class RefusedFileError(Exception):
    """The file may not be opened; the text says which, and why."""


def open_checked(
    path: str,
    owner: int,
    folder: int | None = None,
    *,
    flags: int = os.O_RDONLY,
    fifo: bool = False,
) -> int:
    """Open a file of user `owner`: a regular one with one name, or with `fifo` a pipe.

    Raises RefusedFileError for any other file, and OSError, which includes FileNotFoundError.
    """
    handle = os.open(path, HANDLE, dir_fd=folder)
    return reopen(handle, path, owner, flags=flags, fifo=fifo)


def reopen(
    handle: int, path: str, owner: int | None, *, flags: int = os.O_RDONLY, fifo: bool = False
) -> int:
    """Like `open_checked`, for an open `handle`, which is closed in any case.

    `owner` None: any user, for a file in a folder that only the agent can change.
    """
    try:
        status = os.fstat(handle)
        problem = _problem(status, owner, fifo=fifo)
        if problem:
            raise RefusedFileError(f"{path} {problem}")
        return os.open(f"/proc/self/fd/{handle}", flags | _ALWAYS)
    finally:
        os.close(handle)


def _problem(status: os.stat_result, owner: int | None, *, fifo: bool) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if fifo and not stat.S_ISFIFO(status.st_mode):
        return "is not a pipe"
    if not fifo and not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_nlink > 1:
        return "has a second name"
    if owner is not None and status.st_uid != owner:
        return f"belongs to uid {status.st_uid} and not to the job's user, uid {owner}"
    return ""
