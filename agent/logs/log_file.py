"""One log file, opened without trusting a name: root reads here what a job wrote."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from agent.shim.job_files import HANDLE, RefusedFileError, reopen

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH_MAX: Final = 16
# Of these it is this machine that lacks something, and not the file.
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
EMPTIED: Final = b"\n[muster: the job emptied this log here; what was not read before is gone]\n"


class LogSource:
    """An open log file. It stays the same file, whatever becomes of its name.

    A job may empty it (`echo x > /dev/stdout` does), while offsets of the stream only grow: from
    there on the file's first byte stands behind a line that says so.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begins_at = 0  # offset in the stream of the file's first byte
        self._mark = b""  # what stands before it

    @classmethod
    def open(cls, folder: Path, path: str) -> LogSource | None:
        """Open `path`, relative to `folder`, following no link; None where it is not there yet.

        Raises RefusedFileError for a link, a path that leaves the folder, anything but a regular
        file, a file with a second name, and, in a folder that is the job's, a file that is not of
        the job's user, who may have moved it there; OSError where nobody can tell now, as there is
        no descriptor left.
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
        """At most `limit` bytes from `offset` of the stream; empty at the end."""
        at = offset - self._begins_at
        if -len(self._mark) <= at < 0:
            return self._mark[at:][:limit]
        if at < 0 or at > self.size():
            self._mark, self._begins_at = EMPTIED, offset + len(EMPTIED)
            return EMPTIED[:limit]
        return os.pread(self._fd, limit, at)

    def take(self, offset: int, limit: int) -> bytes | int:
        """What `read` returns, or the length of the hole of the file that begins at `offset`."""
        data = self.read(offset, limit)
        at = offset - self._begins_at
        if at < 0 or b"\0" not in data:
            return data
        try:
            begins = self._next_data(at)
            if begins > at and not data[: begins - at].strip(b"\0"):
                return begins - at
            return data[: os.lseek(self._fd, at, os.SEEK_HOLE) - at] or data
        except OSError:
            return data  # this file system does not tell

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
    """Who can change this open folder beside the agent: None if nobody can. The first such folder
    is one that the agent gave to the job's user; `above` is the answer for the folder above."""
    uid = os.fstat(folder).st_uid
    if above is not None and uid != above:
        raise RefusedFileError(f"a folder of {path} belongs to uid {uid} and not to {above}")
    return above if uid == os.geteuid() else uid


def _unless_short(error: OSError, path: str) -> RefusedFileError:
    """The refusal of a file; raises `error` itself if it is about this machine."""
    if error.errno in SHORTAGES:
        raise error
    return RefusedFileError(f"{path} cannot be opened: {error.strerror}")
