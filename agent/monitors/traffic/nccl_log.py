"""NCCL's own lines, one file a process, in a folder that is the job's: read as they come.

The folder and its files belong to the job's user, who may lay anything there: no link is followed,
no name trusted. What is read goes, line by line, into one file among the task's logs, and with them
to the coordinator. Both that and what is kept of a file are bounded.
"""

from __future__ import annotations

import ctypes
import os
import re
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from agent.logs.log_file import SHORTAGES, LogSource
from agent.shim.job_files import RefusedFileError
from agent.taskdirs.taskdirs import NCCL
from muster.fabric.nccl_log import NcclLog, ProcessEvidence, merged
from muster.protocol.traffic import NcclEvidence

LOG: Final = "logs/nccl.log"
FILES_MAX: Final = 128
LOG_BYTES_MAX: Final = 8 << 20
FILE_BYTES_MAX: Final = 64 << 20
"""Of a file that has grown so much, what was read gives its blocks back."""
_REFUSED_MAX: Final = 1024
# Of the names in the folder: a job may make millions.
_NAMES_MAX: Final = 8192
_READ_BYTES: Final = 1 << 20
_READS_MAX: Final = 16
# Of NCCL's flight recorder: dumps, and the pipes that ask for them.
_RECORDER: Final = ("fr_", "frp_")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
# fallocate: the size of the file stays, and with it the place at which its process writes.
_PUNCH_HOLE_KEEP_SIZE: Final = 3
_FULL: Final = b"[muster: NCCL said more; it is left out here]\n"


_libc = ctypes.CDLL(None, use_errno=True)


class FileState(msgspec.Struct, omit_defaults=True):
    """How far one file was read, and what it said up to there."""

    read: int = 0
    said: ProcessEvidence = ProcessEvidence()


class _File:
    def __init__(self, source: LogSource, state: FileState) -> None:
        self.source = source
        self.log = NcclLog(state.said if state.read else None)
        self.read = self.freed = state.read
        self.part = b""


class NcclLines:
    """The lines of one task's processes. Its methods wait for the disk: call them in a thread."""

    def __init__(self, folder: Path, known: dict[str, FileState] | None = None) -> None:
        """`folder` is the task's; `known` is what an earlier life had read."""
        self._folder = folder
        self._known = known or {}
        self._files: dict[str, _File] = {}
        self._refused: set[str] = set()
        self._written: int | None = None
        self.blind = False
        """Whether the last look has seen less than there is, for want of descriptors."""

    def look(self) -> NcclEvidence:
        """Read what is new, and say what all that was read says."""
        self.blind = False
        for name in self._names():
            file = self._files.get(name) or self._open(name)
            if file is not None:
                self._read(file)
        return merged(one.said for one in self.state().values() if one.read or one.said.decided)

    def state(self) -> dict[str, FileState]:
        """What another life needs to go on: lines that are not whole are read again."""
        return self._known | {
            name: FileState(file.read - file.log.unfinished, file.log.evidence())
            for name, file in self._files.items()
        }

    @property
    def any(self) -> bool:
        """Whether there is a line."""
        return bool(self._written)

    def close(self) -> None:
        """No file stays open. What they said stays known."""
        self._known = self.state()
        for file in self._files.values():
            file.source.close()
        self._files.clear()

    def _names(self) -> list[str]:
        try:
            names = _listed(self._folder / NCCL)
        except OSError as error:
            self.blind = error.errno in SHORTAGES
            return list(self._files)
        room = min(FILES_MAX - len(self._files), _REFUSED_MAX - len(self._refused))
        return [*self._files, *islice(filter(self._is_new, sorted(names)), room)]

    def _is_new(self, name: str) -> bool:
        if name in self._files or name in self._refused:
            return False
        return _NAME.fullmatch(name) is not None and not name.startswith(_RECORDER)

    def _open(self, name: str) -> _File | None:
        try:
            source = LogSource.open(self._folder, f"{NCCL}/{name}")
        except RefusedFileError:
            self._refused.add(name)
            return None
        except OSError:
            # No descriptor is left: the next look finds it again.
            self.blind = True
            return None
        if source is None:
            return None
        file = self._files[name] = _File(source, self._known.get(name, FileState()))
        return file

    def _read(self, file: _File) -> None:
        for _ in range(_READS_MAX):
            try:
                data = file.source.read(file.read, _READ_BYTES)
            except OSError:
                return
            if not data:
                break
            try:
                self._keep(file, data)
            except OSError:
                # No descriptor is left: it is read again by the next look.
                self.blind = True
                return
            file.read += len(data)
            file.log.feed(data)
        if file.read - file.freed >= FILE_BYTES_MAX:
            file.freed = file.read
            _free(file.source.fileno(), file.read)

    def _keep(self, file: _File, data: bytes) -> None:
        """Whole lines go into the task's own log; each says of which process it is. Raises OSError
        for want of descriptors."""
        whole, newline, rest = (file.part + data).rpartition(b"\n")
        if newline and (self._written or 0) < LOG_BYTES_MAX:
            try:
                self._append(whole + newline)
            except OSError as error:
                if error.errno in SHORTAGES:
                    raise
                # A full disk, most often: the verdict does not need the copy.
        file.part = rest[-_READ_BYTES:]

    def _append(self, lines: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._folder / LOG, flags, 0o600)
        try:
            if self._written is None:
                self._written = os.fstat(fd).st_size
            room = LOG_BYTES_MAX - self._written
            kept = lines if len(lines) <= room else _FULL
            self._written += os.write(fd, kept) if room > 0 else 0
            if kept is _FULL:
                self._written = LOG_BYTES_MAX
        finally:
            os.close(fd)


def _listed(folder: Path) -> list[str]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in islice(entries, _NAMES_MAX)]
    finally:
        os.close(fd)


def _free(fd: int, size: int) -> None:
    """Give back the blocks of the first `size` bytes, where the file system can."""
    try:
        writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _libc.fallocate(writable, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))
    finally:
        os.close(writable)
