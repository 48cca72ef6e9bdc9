"""Follower of NCCL's log: one file per process, in a directory of the job.

The directory belongs to the job's user, who may put anything there: no link is followed, and no
name is trusted. The lines are copied into one file among the task's logs, and shipped with them.
The size of this copy and of the remembered part of each file are limited.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from agent.logs.log_file import SHORTAGES, LogSource
from agent.shim.system.job_files import RefusedFileError
from agent.shim.system.libc import libc
from agent.taskdirs.taskdirs import NCCL
from muster.fabric.nccl_communicators import Room
from muster.fabric.nccl_log import NcclLog, ProcessEvidence, merged
from muster.protocol.observations.traffic import NcclEvidence

LOG: Final = "logs/nccl.log"
FILES_MAX: Final = 128
LOG_BYTES_MAX: Final = 8 << 20
FILE_BYTES_MAX: Final = 64 << 20
"""Once a file has grown this much, the blocks of its consumed part are freed."""
_REFUSED_MAX: Final = 1024
# Limit of names, because a job may create millions of files.
_NAMES_MAX: Final = 8192
_READ_BYTES: Final = 1 << 20
LOOK_BYTES_MAX: Final = 4 << 20
"""Bound for all files together: about a second of a thread."""
# Files of NCCL's flight recorder: dumps, and the pipes that trigger them.
_RECORDER: Final = ("fr_", "frp_")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
# fallocate: keep the size of the file, and so the position at which its process writes.
_PUNCH_HOLE_KEEP_SIZE: Final = 3
_FULL: Final = b"[muster: NCCL said more; it is left out here]\n"


class FileState(msgspec.Struct, omit_defaults=True):
    """Progress in one file, and the evidence up to there."""

    read: int = 0
    said: ProcessEvidence = ProcessEvidence()


class _File:
    def __init__(self, source: LogSource, state: FileState, room: Room) -> None:
        self.source = source
        self._log = NcclLog(state.said if state.read else None, room)
        self._state: FileState | None = None
        self.read = self.freed = state.read
        self.part = b""

    def feed(self, data: bytes) -> None:
        self.read += len(data)
        self._log.feed(data)
        self._state = None

    def state(self) -> FileState:
        if self._state is None:
            self._state = FileState(self.read - self._log.unfinished, self._log.evidence())
        return self._state


class NcclLines:
    """The lines of one task's processes. Its methods block on the disk: call them in a thread."""

    def __init__(self, folder: Path, known: dict[str, FileState] | None = None) -> None:
        """`folder` is the task's directory, `known` the state of an earlier agent process."""
        self._folder = folder
        self._known = known or {}
        self._room = Room(comm for one in self._known.values() for comm in one.said.comms)
        self._evidence: NcclEvidence | None = None
        self._files: dict[str, _File] = {}
        self._refused: set[str] = set()
        self._written: int | None = None
        self.blind = False
        """True if the last pass has missed lines for lack of descriptors."""
        self.behind = False
        """True if the last pass has left bytes for the next one."""

    def look(self) -> NcclEvidence:
        """Read new lines and return the evidence from all lines."""
        self.blind = False
        if self._read_all() or self._evidence is None:
            said = (one.said for one in self.state().values() if one.read or one.said.decided)
            self._evidence = merged(said)
        return self._evidence

    def state(self) -> dict[str, FileState]:
        """State for the next agent process. Incomplete lines are read again."""
        return self._known | {name: file.state() for name, file in self._files.items()}

    @property
    def any(self) -> bool:
        """True if there is a line."""
        return bool(self._written)

    def close(self) -> None:
        """Close all files and keep the evidence."""
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
        found = [name for name in sorted(names) if self._is_new(name)]
        again = [name for name in found if name in self._known]
        new = [name for name in found if name not in self._known]
        taken = len(self._files.keys() | self._known.keys())
        room = max(0, min(FILES_MAX - taken, _REFUSED_MAX - len(self._refused)))
        return [*again, *new[:room], *self._files]

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
            # For lack of descriptors, the next pass finds it again.
            self.blind = True
            return None
        if source is None:
            return None
        known = self._known.get(name, FileState())
        file = self._files[name] = _File(source, known, self._room)
        return file

    def _read_all(self) -> int:
        """Read new bytes, of each file one piece in turn; return their number."""
        waiting = deque(self._names())
        done = 0
        while waiting and done < LOOK_BYTES_MAX:
            name = waiting.popleft()
            file = self._files.get(name) or self._open(name)
            if file is None:
                continue
            # The next pass begins with the files that this one read least recently.
            self._files[name] = self._files.pop(name)
            if count := self._read(file):
                done += count
                waiting.append(name)
        self.behind = bool(waiting)
        return done

    def _read(self, file: _File) -> int:
        """Read the next piece of a file and return its length in bytes; 0 at its end."""
        try:
            data = file.source.read(file.read, _READ_BYTES)
        except OSError:
            return 0
        if not data:
            return 0
        try:
            self._keep(file, data)
        except OSError:
            # For lack of descriptors, the next pass reads it again.
            self.blind = True
            return 0
        file.feed(data)
        if file.read - file.freed >= FILE_BYTES_MAX:
            file.freed = file.read
            _free(file.source.fileno(), file.read)
        return len(data)

    def _keep(self, file: _File, data: bytes) -> None:
        """Copy complete lines into the task's own log, each with its process. Raises OSError if
        descriptors are exhausted.
        """
        whole, newline, rest = (file.part + data).rpartition(b"\n")
        if newline and (self._written or 0) < LOG_BYTES_MAX:
            try:
                self._append(whole + newline)
            except OSError as error:
                if error.errno in SHORTAGES:
                    raise
                # Most often a full disk. The verdict does not need the copy.
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
    """Free the blocks of the first `size` bytes, if the file system can."""
    try:
        writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        libc.fallocate(writable, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))
    finally:
        os.close(writable)
