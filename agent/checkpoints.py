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
from dataclasses import dataclass
from typing import Final

import structlog

from agent.core.stimuli import CheckpointSeen, Stimulus
from agent.folders import Owner
from muster.protocol.ids import TaskId

EVERY_S: Final = 10.0
ENTRIES_MAX: Final = 20_000
DEPTH_MAX: Final = 4
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}

_log = structlog.get_logger("agent.checkpoints")


@dataclass(frozen=True, slots=True)
class Newest:
    """The file that was changed last, as a path below the folder."""

    changed_ns: int
    name: str
    size: int


def newest(folder: str) -> Newest | None:
    """None where there is no file. Follows no link but the folder itself. Raises OSError where the
    folder cannot be read."""
    found: Newest | None = None
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
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                one = Newest(status.st_mtime_ns, name, status.st_size)
                if found is None or (one.changed_ns, one.name) > (found.changed_ns, found.name):
                    found = one
    return found


class Watch:
    """One task's folder. What was there when the watch began is no news; what is written still,
    not yet: something counts once two looks have found it the same."""

    def __init__(self, folder: str, seen: Callable[[str], None]) -> None:
        self._folder = folder
        self._seen = seen
        self._known = self._look()
        self._last = self._known

    def look(self) -> None:
        now = self._look()
        if now is not None and now == self._last and now != self._known:
            self._known = now
            self._seen(printable(now.name))
        self._last = now

    def _look(self) -> Newest | None:
        try:
            return newest(self._folder)
        except OSError:
            return None  # not made yet, or not readable


def printable(name: str) -> str:
    """A name as anybody can show it."""
    told = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() else "?" for char in told)[-200:]


class Checkpoints:
    """The watches of all tasks of this node. `owner`: whose jobs they are, None where the agent's
    own user is."""

    def __init__(
        self,
        owner: Owner | None,
        post: Callable[[Stimulus], None],
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
                self._call_soon(lambda: self._post(CheckpointSeen(task, name)))
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
