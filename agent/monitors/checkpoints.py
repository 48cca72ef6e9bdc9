"""Whether jobs write checkpoints: looks into the folder that a job names, again and again.

That folder is the user's and may be on a file system that hangs: every task has a thread of its own
for it, which nobody waits for. It looks with the rights of the job's user, so that nobody is told
names that he may not read, and at no more than `ENTRIES_MAX` entries at a time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from agent.core.inputs import CheckpointObserved, Input
from agent.taskdirs.taskdirs import Owner
from muster.protocol.ids import TaskId

EVERY_S: Final = 10.0
ENTRIES_MAX: Final = 20_000
DEPTH_MAX: Final = 4
LOG_LOOKS: Final = 30  # five minutes without a pause
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}

_log = structlog.get_logger("agent.monitors.checkpoints")


class File(NamedTuple):
    """A file as it was found; the later it was changed, the greater. `name` is its path below the
    folder."""

    changed_ns: int
    name: str
    size: int


_NOTHING: Final = File(-1, "", 0)


def changed(folder: str, since: File = _NOTHING) -> list[File]:
    """The files that are newer than `since`. Follows no link but the folder itself. Raises OSError
    where the folder cannot be read."""
    found: list[File] = []
    left = ENTRIES_MAX
    below = [(folder, "", 1)]
    while below and left > 0:
        path, prefix, depth = below.pop()
        try:
            entries = os.scandir(path)
        except OSError:
            if depth == 1:
                raise
            continue  # it has gone meanwhile, or is nobody's business
        with entries:
            for entry in entries:
                left -= 1
                if left <= 0:
                    break
                name = f"{prefix}{entry.name}"
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < DEPTH_MAX:
                            below.append((entry.path, f"{name}/", depth + 1))
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                file = File(status.st_mtime_ns, name, status.st_size)
                if file > since:
                    found.append(file)
    return found


class Watch:
    """One task's folder. What was there when the watch began is no news; what is written still,
    not yet: something counts once two looks have found it the same, and all that is new beside it
    (a checkpoint may be many files). A file that every look finds changed is a log, and in nobody's
    way."""

    def __init__(self, folder: str, seen: Callable[[str], None]) -> None:
        self._folder = folder
        self._seen = seen
        self._known = max(self._look(_NOTHING), default=_NOTHING)
        self._last: dict[str, File] = {}
        self._streaks: dict[str, int] = {}  # by name: looks in a row that found it changed

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

    def _look(self, since: File) -> list[File]:
        try:
            return changed(self._folder, since)
        except OSError:
            return []  # not made yet, or not readable


def _part(name: str) -> str:
    """What is written together: each folder in the folder, and the files beside them."""
    first, inside, _ = name.partition("/")
    return first if inside else ""


def printable(name: str) -> str:
    """A name as anybody can show it."""
    told = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else "?" for char in told)[-200:]


class CheckpointMonitor:
    """The watches of all tasks of this node. `owner`: whose jobs they are, None where the agent's
    own user is."""

    def __init__(
        self,
        owner: Owner | None,
        post: Callable[[Input], None],
        call_soon: Callable[[Callable[[], None]], object],
        every_s: float = EVERY_S,
    ) -> None:
        self._owner = owner
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
        """Its thread goes as soon as it can; one that hangs in the kernel is left to itself."""
        over = self._watched.pop(task, None)
        if over is not None:
            over.set()

    def _watch(self, task: TaskId, folder: str, over: threading.Event) -> None:
        try:
            if self._owner is not None and os.geteuid() == 0:
                become(self._owner)
        except OSError as error:
            _log.warning("checkpoints_not_watched", task=task, why=str(error))
            return

        def seen(name: str) -> None:
            try:
                self._call_soon(lambda: self._post(CheckpointObserved(task, name)))
            except RuntimeError:
                over.set()  # this agent is being stopped

        watch = Watch(folder, seen)
        while not over.wait(self._every_s):
            watch.look()


def become(owner: Owner) -> None:
    """Give this thread, and no other, the rights of a user to files. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise OSError(f"not known how on {platform.machine()}")
    groups = os.getgrouplist(owner.name, owner.gid)
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    # The system calls and not libc's functions, which would change all threads.
    if libc.syscall(number, len(groups), listed) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")
    libc.setfsgid(owner.gid)
    libc.setfsuid(owner.uid)
    # They say what was before: asked again, what is now.
    if libc.setfsuid(-1) != owner.uid or libc.setfsgid(-1) != owner.gid:
        raise OSError(f"the rights of {owner.name} cannot be taken")
