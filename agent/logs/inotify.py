"""Notification of file writes through inotify.

Own code, because a watch must be on the open file and not on its name, and because a million small
writes must not cause a million wake-ups. The existing package (asyncinotify) creates objects and
paths for every event, while a number is enough here.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from typing import Final

from agent.shim.system.libc import libc

_IN_MODIFY: Final = 0x00000002
_IN_Q_OVERFLOW: Final = 0x00004000
_IN_IGNORED: Final = 0x00008000
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024
# The first write is reported at once, those of the next few milliseconds together.
_PAUSE_S: Final = 0.002


class Inotify:
    """Calls back when files grow. Needs a running loop; `close` ends it."""

    def __init__(self) -> None:
        """Raises OSError if no instance is left (fs.inotify.max_user_instances)."""
        self._loop = asyncio.get_running_loop()
        self._fd = _checked(libc.inotify_init1(_FLAGS))
        self._grown: dict[int, Callable[[], None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._read)

    def watch(self, fd: int, grown: Callable[[], None]) -> int:
        """Watch the open file `fd`, even if it was renamed. Returns the watch.

        Raises OSError if no watch is left (fs.inotify.max_user_watches).
        """
        path = f"/proc/self/fd/{fd}".encode()
        watch = _checked(libc.inotify_add_watch(self._fd, path, _IN_MODIFY))
        self._grown[watch] = grown
        return watch

    def unwatch(self, watch: int) -> None:
        """Remove a watch. Does nothing if the file has gone."""
        if self._grown.pop(watch, None) is not None:
            libc.inotify_rm_watch(self._fd, watch)

    def close(self) -> None:
        if self._fd < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._grown.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        watches: set[int] = set()
        at = 0
        while at < len(data):
            watch, mask, _, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            if mask & _IN_IGNORED:
                continue  # a watch has ended: nothing to report
            if mask & _IN_Q_OVERFLOW:
                watches.update(self._grown)
            watches.add(watch)
        if not watches:
            return
        for watch in watches:
            grown = self._grown.get(watch)
            if grown is not None:
                grown()
        self._loop.remove_reader(self._fd)
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._read)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
