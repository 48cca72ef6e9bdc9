"""Monitor of the disk that holds the state directory: task directories, scratch and logs.

It has a thread of its own, so that a disk that hangs blocks only that thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.taskdirs.taskdirs import RESERVE_BYTES
from muster.protocol.control_channel import NodeChanges
from muster.protocol.disks import DiskHealth

PERIOD_S: Final = 5.0
HANGS_S: Final = 10.0
"""A check that takes longer is reported: the disk hangs, or is too slow for a task's record."""
_TRIAL: Final = ".trial"
_LOW_BYTES: Final = 4 * RESERVE_BYTES
_LOW_SHARE: Final = 0.02
_INODES_MIN: Final = 64

_log = structlog.get_logger("agent.monitors.disks")


def look(folder: Path) -> DiskHealth | None:
    """Check the disk; blocks. Returns None if the disk is healthy."""
    disk = os.statvfs(folder)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    inodes = disk.f_files > 0 and disk.f_favail < _INODES_MIN
    full = free < RESERVE_BYTES or inodes
    if not full:
        _write_through(folder)
    if full or free < max(_LOW_BYTES, total * _LOW_SHARE):
        return DiskHealth(str(folder), free, total, full, inodes)
    return None


def _write_through(folder: Path) -> None:
    """Write and sync a file: only that reveals a disk that hangs."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder / _TRIAL, flags, 0o600)
    try:
        os.write(fd, b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


class DiskMonitor:
    """Posts every change of the disk's health."""

    def __init__(
        self,
        folder: Path,
        post: Callable[[Input], None],
        look: Callable[[Path], DiskHealth | None] = look,
        period_s: float = PERIOD_S,
        hangs_s: float = HANGS_S,
    ) -> None:
        self._folder = folder
        self._post = post
        self._look = look
        self._period_s = period_s
        self._hangs_s = hangs_s
        self._found: DiskHealth | None = None
        self._told: tuple[DiskHealth, ...] = ()
        self._ended = threading.Event()
        self._looked = asyncio.Event()

    async def watch(self) -> Never:
        """Check periodically until cancelled."""
        loop = asyncio.get_running_loop()
        looking = threading.Thread(
            target=self._run, args=(loop,), name="agent.monitors.disks", daemon=True
        )
        looking.start()
        try:
            while True:
                self._looked.clear()
                hangs = False
                try:
                    async with asyncio.timeout(self._period_s + self._hangs_s):
                        await self._looked.wait()
                except TimeoutError:
                    hangs = True
                self._tell(hangs=hangs)
        finally:
            self._ended.set()

    def _tell(self, *, hangs: bool) -> None:
        found = self._found
        if hangs:
            found = DiskHealth(str(self._folder), hangs=True)
        told = () if found is None else (found,)
        if told == self._told:
            return
        before, self._told = self._told, told
        if found is None:
            _log.info("disk_well", folder=str(self._folder))
        elif not before or before[0].text != found.text:
            _log.warning("disk", why=found.text)
        self._post(NodeObserved(NodeChanges(disks=told)))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop of the monitor's thread."""
        while not self._ended.is_set():
            try:
                self._found = self._coarse(self._look(self._folder))
            except OSError as error:
                _log.warning("disk_not_examined", folder=str(self._folder), why=str(error))
                why = error.strerror or str(error)
                self._found = DiskHealth(str(self._folder), hangs=True, error=why)
            try:
                loop.call_soon_threadsafe(self._looked.set)
            except RuntimeError:
                # The event loop is closed: the agent is exiting.
                return
            self._ended.wait(self._period_s)

    def _coarse(self, found: DiskHealth | None) -> DiskHealth | None:
        """Keep the previous value while free space changes little: no report for each byte."""
        before = self._found
        if (
            found is None
            or before is None
            or (found.full, found.inodes)
            != (
                before.full,
                before.inodes,
            )
        ):
            return found
        near = abs(found.free_bytes - before.free_bytes) < max(before.free_bytes // 4, 1 << 20)
        return before if near and not before.hangs else found
