"""The files of a shim: its identity while it lives, its task's exit record, and the logs."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import math
import os

from agent.shim.status import encoded
from agent.shim.system import syscalls
from agent.shim.system.job_files import RefusedFileError, open_checked

LOCK = "lock"
IDENTITY = "shim.json"
EXIT = "exit.json"
SOCKET = "shim.sock"
HOSTFILE = "hostfile"
LOGS = "logs"
TORCHRUN_LOGS = "torchrun"
ERRORS = "errors"
_FULL_BYTES = 1 << 20
ERROR_FILE_BYTES_MAX = 1 << 20
# A job may hold a lease on its log, for which the kernel makes an open wait 45 s.
_NO_WAIT = os.O_NONBLOCK
EXIT_BYTES = 512 << 10
"""Larger than the shortened exit record of a task with 1024 ranks."""
_QUOTED = 4
_TEXTS = ("error", "stderr_tail", "kernel")


def take_lock(folder_fd: int) -> int:
    """Lock the folder of a task for one shim; the descriptor holds the lock.

    Raises BlockingIOError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(LOCK, flags, 0o600, dir_fd=folder_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def write_identity(folder_fd: int, task: str, mark: str, cgroup: str | None) -> None:
    """Write the file by which an agent recognises the shim, and the leftovers of a dead one.

    `mark` is in the environment of every process of the task.
    """
    document = {
        "v": 1,
        "task": task,
        "pid": os.getpid(),
        "start_time": _start_time(os.getpid()),
        "boot_id": syscalls.boot_id(),
        "mark": mark,
        "cgroup": cgroup,
    }
    # Not synced: after a power failure there is no shim either.
    _replace(folder_fd, IDENTITY, document, sync=False)


@functools.cache
def _start_time(own: int) -> int | None:
    """The start time of this process. `own` is its pid: a forked child has another cache entry."""
    stat = syscalls.stat_of(own)
    return None if stat is None else stat[2]


def reserve_exit(folder_fd: int) -> None:
    """Reserve disk space for the exit record, so that a job that fills the disk can still end.

    Does nothing if the space is not available.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(f".{EXIT}.new", flags, 0o600, dir_fd=folder_fd)
        try:
            os.posix_fallocate(fd, 0, EXIT_BYTES)
        finally:
            os.close(fd)
    except OSError:
        pass


def write_exit(folder_fd: int, document: dict[str, object]) -> None:
    """Write the exit record; it is on disk when this returns. Raises OSError (disk full).

    If the disk is full, only the ranks that failed first keep their texts, so that the record fits
    into the reserved space.
    """
    try:
        _replace(folder_fd, EXIT, document, sync=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _replace(folder_fd, EXIT, _shortened(document), sync=True)


def _shortened(document: dict[str, object]) -> dict[str, object]:
    """The exit record with the texts of `_QUOTED` ranks, which is as many as a report quotes."""
    made: dict[str, object] = json.loads(encoded(document))
    ranks = made["ranks"]
    assert isinstance(ranks, list)
    texts = [rank for rank in ranks if any(rank[name] for name in _TEXTS)]
    texts.sort(key=lambda rank: float(rank["exit"]["at_s"] or 0.0) if rank["exit"] else math.inf)
    for rank in texts[_QUOTED:]:
        for name in _TEXTS:
            rank[name] = None
    return made


def write_hostfile(folder_fd: int, text: str) -> None:
    """Write the host file, readable by the job. Raises OSError."""
    _replace_bytes(folder_fd, HOSTFILE, text.encode(), sync=False, mode=0o644)


def _replace(folder_fd: int, name: str, document: dict[str, object], sync: bool) -> None:
    _replace_bytes(folder_fd, name, encoded(document), sync)


def _replace_bytes(folder_fd: int, name: str, data: bytes, sync: bool, mode: int = 0o600) -> None:
    temporary = f".{name}.new"
    # Overwrites the reserved file, and truncates the rest.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600, dir_fd=folder_fd)
    try:
        if mode != 0o600:
            # Independent of the umask.
            os.fchmod(fd, mode)
        size = len(data)
        while data:
            data = data[os.write(fd, data) :]
        os.ftruncate(fd, size)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    if sync:
        os.fsync(folder_fd)


class Logs:
    """The files that a task's processes write. The agent owns the folder; a job gets descriptors.

    The files belong to the job's user, so that a program can reopen /dev/stdout. The user has no
    path to them, so that readers meet no link that the user could have made.
    """

    def __init__(self, folder_fd: int, owner: tuple[int, int] | None) -> None:
        self._folder_fd = folder_fd
        self._owner = owner

    def own(self, uid: int, gid: int) -> None:
        """Make the job's user the owner of all files created from now on."""
        self._owner = (uid, gid)

    def open(self, name: str) -> int:
        """A descriptor that appends to logs/`name`. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(f"{LOGS}/{name}", flags | _NO_WAIT, 0o600, dir_fd=self._folder_fd)
        os.set_blocking(fd, True)
        if self._owner is not None:
            os.fchown(fd, *self._owner)
        return fd

    def open_folder(self, name: str) -> int:
        """A descriptor of logs/`name`, in which the job's user makes files. Raises OSError."""
        path = f"{LOGS}/{name}"
        try:
            os.mkdir(path, 0o700, dir_fd=self._folder_fd)
        except FileExistsError:
            pass
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, dir_fd=self._folder_fd)
        if self._owner is not None:
            os.fchown(fd, *self._owner)
        return fd

    def recorded_error(self, name: str) -> str | None:
        """The error that torch's @record wrote into logs/errors/`name`: the traceback, or the
        message.

        The job's user owns the folder and may have placed anything there, such as links to files of
        other users. Returns None if there is no valid file of this user.
        """
        owner = os.geteuid() if self._owner is None else self._owner[0]
        try:
            fd = open_checked(f"{LOGS}/{ERRORS}/{name}", owner, self._folder_fd)
        except (OSError, RefusedFileError):
            return None
        try:
            message = json.loads(os.read(fd, ERROR_FILE_BYTES_MAX))["message"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        finally:
            os.close(fd)
        if isinstance(message, dict):
            extra = message.get("extraInfo")
            traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
            message = traceback or message.get("message")
        return message.strip() if isinstance(message, str) else None

    def no_room(self) -> bool:
        """True if the disk of the task's folder is full. A program's own report of that could not
        be written either.
        """
        try:
            disk = os.fstatvfs(self._folder_fd)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _FULL_BYTES

    def tail(self, name: str, limit: int) -> str:
        """The last `limit` bytes of logs/`name` as text, cut at the front to whole lines.

        Returns "" if the file cannot be read.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | _NO_WAIT
        try:
            fd = os.open(f"{LOGS}/{name}", flags, dir_fd=self._folder_fd)
        except OSError:
            return ""
        try:
            size = os.fstat(fd).st_size
            data = os.pread(fd, limit, max(size - limit, 0))
        except OSError:
            return ""
        finally:
            os.close(fd)
        # If one line is longer than all of this, its end is better than nothing.
        if size > limit and b"\n" in data[:-1]:
            data = data[data.index(b"\n") + 1 :]
        return data.decode(errors="replace").strip()
