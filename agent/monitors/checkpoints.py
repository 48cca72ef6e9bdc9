"""Detect new checkpoints by polling the directory that a job names.

The directory is the user's and its file system may hang, so every task has a thread of its own that
nobody waits for. The thread has the rights of the job's user, so that it reports no names which
that user may not read. It reads at most `ENTRIES_MAX` entries per poll.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pwd
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog

from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.taskdirs.taskdirs import TaskUser
from muster.protocol.ids import TaskId

EVERY_S: Final = 10.0
ENTRIES_MAX: Final = 20_000
DEPTH_MAX: Final = 4
LOG_LOOKS: Final = 30  # five minutes without a pause
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}

_log = structlog.get_logger("agent.monitors.checkpoints")


class CheckpointFile(NamedTuple):
    """A file and its state; files compare by modification time. `name` is the path below the
    directory."""

    changed_ns: int
    name: str
    size: int


_NOTHING: Final = CheckpointFile(-1, "", 0)


def changed(folder: str, since: CheckpointFile = _NOTHING) -> list[CheckpointFile]:
    """The files newer than `since`. Follows no link below the directory. Raises OSError if the
    directory cannot be read."""
    found: list[CheckpointFile] = []
    left = ENTRIES_MAX
    parts = _resolved(folder)
    below: list[tuple[str, ...]] = [()]
    while below and left > 0:
        inside = below.pop()
        try:
            fd = _opened((*parts, *inside))
        except OSError:
            if not inside:
                raise
            continue  # removed meanwhile, or unreadable
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    left -= 1
                    if left <= 0:
                        break
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            if len(inside) + 1 < DEPTH_MAX:
                                below.append((*inside, entry.name))
                            continue
                        if not entry.is_file(follow_symlinks=False):
                            continue
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    name = "/".join((*inside, entry.name))
                    file = CheckpointFile(status.st_mtime_ns, name, status.st_size)
                    if file > since:
                        found.append(file)
        finally:
            os.close(fd)
    return found


def _resolved(folder: str) -> tuple[str, ...]:
    """The parts of a path without symbolic links. Raises OSError.

    The links of `/proc/self` lead past the permissions of parent directories, and here `self` is
    the agent. So their targets are opened by name, like every other directory.
    """
    return tuple(os.path.realpath(folder, strict=True).split("/")[1:])


def _opened(parts: tuple[str, ...]) -> int:
    """Open a directory, part by part and without following links. Raises OSError."""
    fd = os.open("/", os.O_PATH | _DIRECTORY)
    for part in filter(None, parts):
        try:
            below = os.open(part, os.O_PATH | _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    try:
        if os.fstat(fd).st_dev == os.stat("/proc").st_dev:
            raise PermissionError(errno.EPERM, "no checkpoints are in /proc", "/".join(parts))
        return os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)


class CheckpointWatch:
    """Watches one task's directory. Files from before the start of the watch do not count.

    A file has settled once two polls found it unchanged, together with all new files beside it,
    because a checkpoint may be many files. A file that changes in every poll is a log and is
    ignored.
    """

    def __init__(self, folder: str, seen: Callable[[str], None]) -> None:
        self._folder = folder
        self._seen = seen
        self._known = max(self._look(_NOTHING), default=_NOTHING)
        self._last: dict[str, CheckpointFile] = {}
        self._streaks: dict[str, int] = {}  # by name: polls in a row that found it changed

    def look(self) -> None:
        fresh = {file.name: file for file in self._look(self._known)}
        streaks = {
            name: 0 if self._last.get(name) == file else self._streaks.get(name, 0) + 1
            for name, file in fresh.items()
        }
        moving = {_part(name) for name, streak in streaks.items() if 0 < streak < LOG_LOOKS}
        settled = [
            file for name, file in fresh.items() if streaks[name] == 0 and _part(name) not in moving
        ]
        self._last, self._streaks = fresh, streaks
        if settled:
            self._known = max(settled)
            self._seen(printable(self._known.name))

    def _look(self, since: CheckpointFile) -> list[CheckpointFile]:
        try:
            return changed(self._folder, since)
        except OSError:
            return []  # not created yet, or not readable


def _part(name: str) -> str:
    """The group that is written together: a subdirectory, or all files at the top level."""
    first, inside, _ = name.partition("/")
    return first if inside else ""


def printable(name: str) -> str:
    """The name with only printable characters."""
    printed = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else "?" for char in printed)[-200:]


class CheckpointMonitor:
    """The watches of all tasks of this node, each with the rights of the task's user."""

    def __init__(
        self,
        user_of: Callable[[TaskId], TaskUser],
        post: Callable[[Input], None],
        call_soon: Callable[[Callable[[], None]], object],
        every_s: float = EVERY_S,
    ) -> None:
        self._user_of = user_of
        self._post = post
        self._call_soon = call_soon
        self._every_s = every_s
        self._watched: dict[TaskId, threading.Event] = {}

    def begin(self, task: TaskId, folder: str | None) -> None:
        if folder is None or task in self._watched:
            return
        over = self._watched[task] = threading.Event()
        threading.Thread(
            target=self._watch, args=(task, folder, over), name=f"checkpoints.{task}", daemon=True
        ).start()

    def end(self, task: TaskId) -> None:
        """Stop the watch. Its thread exits as soon as it can; one that hangs in the kernel is
        abandoned."""
        over = self._watched.pop(task, None)
        if over is not None:
            over.set()

    def _watch(self, task: TaskId, folder: str, over: threading.Event) -> None:
        try:
            user = self._user_of(task)
            if user.uid != os.geteuid():
                become(user)
        except OSError as error:
            _log.warning("checkpoints_not_watched", task=task, why=str(error))
            return

        def seen(name: str) -> None:
            try:
                seen = TaskObserved(task, TaskChanges(checkpoint=name))
                self._call_soon(partial(self._post, seen))
            except RuntimeError:
                over.set()  # the agent is shutting down

        watch = CheckpointWatch(folder, seen)
        while not over.wait(self._every_s):
            watch.look()


def become(user: TaskUser) -> None:
    """Give this thread alone the file access rights of a user. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise OSError(f"not supported on {platform.machine()}")
    try:
        groups = os.getgrouplist(pwd.getpwuid(user.uid).pw_name, user.gid)
    except KeyError:
        groups = [user.gid]  # the account is gone
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    # Use the system calls directly: libc's functions would change all threads.
    if libc.syscall(number, len(groups), listed) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")
    libc.setfsgid(user.gid)
    libc.setfsuid(user.uid)
    # These calls return the previous id, so a second call shows whether the first one worked.
    if libc.setfsuid(-1) != user.uid or libc.setfsgid(-1) != user.gid:
        raise OSError(f"cannot get the rights of uid {user.uid}")
