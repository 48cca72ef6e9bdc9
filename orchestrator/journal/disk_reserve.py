"""Reserved disk space, so that cancels and job ends can be journaled on a full disk.

A reserve file holds the space. If a write fails because the disk is full, the write-ahead log gets
its blocks at once, before another writer of the same disk can take them.
"""

import contextlib
import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

FILE_NAME: Final = "journal.reserve"
# This much stays free: the index of a longer log grows by 32 KiB, in a file of its own.
_LEFT_BYTES: Final = 128 << 10
_SMALLEST_BYTES: Final = 64 << 10
_FILES_MIN: Final = 256

# Errors of the kernel for a write without room (EDQUOT and EFBIG are "an I/O error"). An fsync
# returns none of them; after a failed fsync, the state of the disk would be unknown.
_NO_ROOM: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
)


_NO_ROOM_ERRNO: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: sqlite3.Error, folder: Path) -> bool:
    """True if the error means a full disk, so that nothing was written and a retry is possible.

    SQLite reports a disk that fails or is read-only by the same code as a quota. Writing a file to
    `folder` distinguishes them.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code != sqlite3.SQLITE_IOERR_WRITE:
        return code in _NO_ROOM
    trial = folder / f".{FILE_NAME}.trial"
    try:
        trial.write_bytes(bytes(4096))
    except OSError as failed:
        return failed.errno in _NO_ROOM_ERRNO
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    return True


class DiskReserve:
    """Free space for one journal. If `reserve_bytes` is 0, there is no reserve and no check."""

    def __init__(self, journal: Path, reserve_bytes: int) -> None:
        self._journal = journal
        self._file = journal.with_name(FILE_NAME)
        self.reserve_bytes = reserve_bytes
        self._kept = False  # whether the reserve exists in full
        self._low = False

    def is_full(self, error: sqlite3.Error) -> bool:
        """The same as the function of that name, for the journal's disk."""
        return is_full(error, self._journal.parent)

    def keep(self) -> bool:
        """Allocate the reserve as far as there is room. Returns whether it is complete."""
        if self.reserve_bytes == 0 or self._kept:
            return True
        try:
            fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.reserve_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._file.unlink(missing_ok=True)
            return False
        self._kept = True
        return True

    def spend(self) -> bool:
        """Give the reserve to the write-ahead log. Returns False if there was none."""
        if not self.release():
            return False
        self.claim()
        return True

    def release(self) -> bool:
        """Remove the reserve, also one of an earlier process. Returns False if there was none."""
        self._kept, self._low = False, True
        try:
            self._file.unlink()
        except OSError:
            return False
        return True

    def claim(self) -> None:
        """Extend the write-ahead log by the size of the reserve, or as much as there is room
        for.
        """
        wanted = self.reserve_bytes - _LEFT_BYTES
        try:
            with open(f"{self._journal}-wal", "r+b") as log:
                end = log.seek(0, os.SEEK_END)
                while wanted >= _SMALLEST_BYTES:
                    try:
                        # SQLite ignores zeros at the end of a log, like any stale frames.
                        os.posix_fallocate(log.fileno(), end, wanted)
                        return
                    except OSError:
                        wanted //= 2
        except OSError:
            return

    def problem(self) -> str:
        """Return a sentence if the disk is full. Returns "" otherwise; the reserve exists then."""
        if self.reserve_bytes == 0:
            return ""
        disk = os.statvfs(self._journal.parent)
        free = disk.f_bavail * disk.f_frsize
        # Hysteresis: full below the reserve, well again with twice as much.
        needed = self.reserve_bytes * (2 if self._low else 1) + (
            0 if self._kept else self.reserve_bytes
        )
        few = disk.f_files > 0 and disk.f_favail < _FILES_MIN * (2 if self._low else 1)
        self._low = few or free < needed or not self.keep()
        if not self._low:
            return ""
        if few:
            return (
                f"the disk of the coordinator's state folder {self._journal.parent} has only "
                f"{disk.f_favail} inodes for new files"
            )
        return (
            f"the disk of the coordinator's state folder {self._journal.parent} is full: "
            f"{free >> 20} MiB are free, and {max(needed >> 20, 1)} MiB are needed"
        )
