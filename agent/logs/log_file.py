"""Log files, opened without trusting a name: root reads here what a job wrote."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from agent.shim.system.job_files import HANDLE, RefusedFileError, reopen

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH_MAX: Final = 16
# These errors mean that the machine lacks resources; the file may be fine.
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
OFFSET_MAX: Final = 1 << 61
_FILE_BYTES_MAX: Final = (1 << 63) - 1
EMPTIED: Final = b"\n[muster: the job emptied this log here; what was not read before is gone]\n"


class LogSource:
    """An open log file. It stays the same file, even if it is renamed.

    A job may truncate it (`echo x > /dev/stdout` does), while offsets of the stream only grow. From
    then on, the file's first byte follows a line that reports the truncation.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begins_at = 0  # stream offset of the file's first byte
        self._mark = b""  # the line before it

    @classmethod
    def open(cls, folder: Path, path: str) -> LogSource | None:
        """Open `path`, relative to `folder`, following no link. Returns None if it does not exist
        yet.

        Raises RefusedFileError for a link, a path that leaves the folder, anything but a regular
        file, a file with a second name, and, in a directory of the job, a file of another user,
        because the job may have moved it there. Raises OSError if it cannot be checked now, for
        lack of descriptors.
        """
        parts = path.split("/")
        if not parts or len(parts) > _DEPTH_MAX or any(part in {"", ".", ".."} for part in parts):
            raise RefusedFileError(f"{path!r} is not a path below the task's folder")
        try:
            at = os.open(folder, _FOLDER)
        except FileNotFoundError:
            return None
        try:
            owner = None
            for part in parts[:-1]:
                above, at = at, os.open(part, _FOLDER, dir_fd=at)
                os.close(above)
                owner = _owner(at, owner, path)
            handle = os.open(parts[-1], HANDLE, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unless_short(error, path) from error
        finally:
            os.close(at)
        try:
            return cls(reopen(handle, path, owner))
        except OSError as error:
            raise _unless_short(error, path) from error

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from `offset` of the stream; empty at the end.

        A job can make its file long and empty it again and again. What is beyond `OFFSET_MAX` of
        the stream is left out, because no peer takes such offsets.
        """
        if offset >= OFFSET_MAX:
            return b""
        at = offset - self._begins_at
        if -len(self._mark) <= at < 0:
            return self._mark[at:][:limit]
        if at < 0 or at > self.size():
            self._mark, self._begins_at = EMPTIED, offset + len(EMPTIED)
            return EMPTIED[:limit]
        return os.pread(self._fd, min(limit, _FILE_BYTES_MAX - at), at)

    def take(self, offset: int, limit: int) -> bytes | int:
        """Return the same as `read`, or the length of the hole that begins at `offset`."""
        data = self.read(offset, limit)
        at = offset - self._begins_at
        if at < 0 or b"\0" not in data:
            return data
        try:
            begins = self._next_data(at)
            if begins > at and not data[: begins - at].strip(b"\0"):
                return min(begins - at, OFFSET_MAX - offset)
            return data[: os.lseek(self._fd, at, os.SEEK_HOLE) - at] or data
        except OSError:
            return data  # this file system does not report holes

    def _next_data(self, at: int) -> int:
        try:
            return os.lseek(self._fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.size()  # a hole to the end

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _owner(folder: int, above: int | None, path: str) -> int | None:
    """Return the user besides the agent's who can change this open directory; None if there is
    none. The first such directory was given to the job's user by the agent. `above` is the result
    for the parent.
    """
    uid = os.fstat(folder).st_uid
    if above is not None and uid != above:
        raise RefusedFileError(f"a directory of {path} belongs to uid {uid} and not to {above}")
    return above if uid == os.geteuid() else uid


def _unless_short(error: OSError, path: str) -> RefusedFileError:
    """Return the refusal of a file. Raises `error` itself if it is about this machine."""
    if error.errno in SHORTAGES:
        raise error
    return RefusedFileError(f"{path} cannot be opened: {error.strerror}")
