"""Space on the log disk: how much each job may still store."""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.protocol.ids import JobId
from orchestrator.core.storage.log_space import low_mark

FILES_MIN: Final = 1024
"""Inodes of the log disk that are kept free, as `free_min` bytes are."""


@dataclass(slots=True)
class Usage:
    """Stored bytes of a job and of each of its tasks."""

    job: int = 0
    tasks: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[tuple[tuple[int, int], int]]) -> "Usage":
        usage = cls()
        for task, count in found:
            usage.add(task, count)
        return usage

    def add(self, task: tuple[int, int], count: int) -> None:
        self.job += count
        self.tasks[task] = self.tasks.get(task, 0) + count


class Space:
    """Checks each write against the free bytes of the disk. If `free_min` is 0, there is no limit.

    `short` is set when less than the low mark is free. `share` is then the limit of one running
    job; the waiter on `short` sets it.
    """

    def __init__(self, root: Path, free_min: int) -> None:
        self._root = root
        self.free_min = free_min
        # Until the first decision, only jobs that have used little may write.
        self.share = free_min
        self.short = asyncio.Event()
        self.is_short = False
        self.waiting: frozenset[JobId] = frozenset()  # running jobs that exceed their share

    def free(self) -> int:
        """Return the free bytes of the disk. Raises OSError."""
        disk = os.statvfs(self._root)
        return disk.f_bavail * disk.f_frsize

    @property
    def file_bytes(self) -> int:
        """Bytes that a file counts for while inodes are scarcer than bytes."""
        return max(self.free_min, 1 << 20) // FILES_MIN

    def room(self) -> tuple[int, bool]:
        """Return the free bytes, and whether they stand for inodes, of which less is left.

        So inodes are shared and freed like bytes. Raises OSError.
        """
        disk = os.statvfs(self._root)
        free, files = self.free(), disk.f_favail * self.file_bytes
        scarce = disk.f_files > 0 and files < free
        return (files if scarce else free), scarce

    def refusal(self, used: int, files: int, count: int) -> str | None:
        """Return why `count` more bytes are refused, or None.

        The job has `used` bytes in `files` files already.
        """
        if not self.free_min:
            return None
        try:
            free, by_files = self.room()
        except OSError as error:
            return f"{self._root}: {error.strerror}"
        if free >= low_mark(self.free_min):
            return None
        self.short.set()
        if by_files:
            if free < self.free_min:
                return f"less than {FILES_MIN} inodes would be left on the log disk"
            if files * self.file_bytes > self.share:
                return f"the log disk is short of inodes, and this job has {files} files on it"
            return None
        if free < self.free_min + count:
            return f"less than {self.free_min >> 20} MiB would be left of the log disk"
        if used > self.share:
            return (
                f"the log disk is nearly full, and this job uses {used >> 20} MiB of it, more "
                f"than its share of {self.share >> 20} MiB"
            )
        return None
