"""Monitor of the disk that holds the state directory: task directories, scratch and logs.

Each check has a thread of its own, so that a disk that hangs blocks only that thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.taskdirs.taskdirs import RESERVE_BYTES
from muster.daemon.abandoned_thread import BlockingCall
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.disks import DiskHealth

PERIOD_S: Final = 5.0
HANGS_S: Final = 10.0
"""A check that takes longer is reported: the disk hangs, or is too slow for a task's record."""
_TRIAL: Final = ".trial"
_LOW_BYTES: Final = 4 * RESERVE_BYTES
_LOW_SHARE: Final = 0.02
_INODES_MIN: Final = 64

_log = structlog.get_logger("agent.monitors.disks")


def check(folder: Path) -> DiskHealth | None:
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


class DiskMonitor(Monitor):
    """Posts every change of the disk's health."""

    def __init__(
        self,
        folder: Path,
        post: Callable[[Input], None],
        check: Callable[[Path], DiskHealth | None] = check,
        period_s: float = PERIOD_S,
        hangs_s: float = HANGS_S,
    ) -> None:
        super().__init__(post, period_s)
        self._folder = folder
        self._check = BlockingCall(lambda: check(folder), "agent.monitors.disks")
        self._hangs_s = hangs_s
        self._found: DiskHealth | None = None
        self._logged = ""

    async def look(self) -> None:
        folder = str(self._folder)
        try:
            found = self._found = self._coarse(await self._check.result(self._hangs_s))
        except TimeoutError:
            found = DiskHealth(folder, hangs=True)
        except OSError as error:
            _log.warning("disk_not_examined", folder=folder, why=str(error))
            found = DiskHealth(folder, hangs=True, error=error.strerror or str(error))
            self._found = found
        disks = () if found is None else (found,)
        if self._is_news("disks", disks):
            self._log_change(found)
            self._post(NodeObserved(NodeChanges(disks=disks)))

    def _log_change(self, found: DiskHealth | None) -> None:
        before, self._logged = self._logged, "" if found is None else found.text
        if found is None:
            _log.info("disk_well", folder=str(self._folder))
        elif found.text != before:
            _log.warning("disk", why=found.text)

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
