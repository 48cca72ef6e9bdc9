"""The audit log: files of JSON lines that are only appended to, and rotated by size.

Changes that users make to what is their own are in files of their own: a user can make any number
of them, and must not overwrite the entries of operators and admins, refusals and failed logins.

Entries are written by a thread, so that a slow disk delays no request. They are bounded in memory
and on disk. An entry that cannot be written is counted and logged.
"""

import asyncio
import heapq
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Never

import msgspec
import structlog

from muster.http.audit import AuditEntry

FILE: Final = "audit.jsonl"
USERS_FILE: Final = "audit-users.jsonl"
BYTES_MAX: Final = 8 << 20
FILES_MAX: Final = 8
_WAITING_MAX: Final = 10_000

_log = structlog.get_logger("muster.audit")
_decode: Final = msgspec.json.Decoder(AuditEntry).decode


class AuditLog:
    """The audit log in a directory."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._files = {
            False: _RotatedFile(folder / FILE, bytes_max),
            True: _RotatedFile(folder / USERS_FILE, bytes_max),
        }
        self._waiting: dict[bool, list[AuditEntry]] = {False: [], True: []}
        self._work = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lost = 0

    def add(self, entry: AuditEntry, *, own: bool = False) -> None:
        """Append an entry soon; `own` if a user changed what is the user's own. Never waits."""
        waiting = self._waiting[own]
        if len(waiting) >= _WAITING_MAX:
            self._lost += 1
            return
        waiting.append(entry)
        self._work.set()

    async def run(self) -> Never:
        """Write entries as they come."""
        while True:
            await self._work.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write all entries added so far, in this order."""
        async with self._writing:
            await self._flush()

    async def _flush(self) -> None:
        self._work.clear()
        batches, lost = self._waiting, self._lost
        self._waiting = {False: [], True: []}
        self._lost = 0
        why = "too many at once"
        for own, batch in batches.items():
            try:
                if batch:
                    await asyncio.to_thread(self._write, own, batch)
            except OSError as error:
                lost += len(batch)
                why = str(error)
        if lost:
            _log.error("audit_entries_lost", count=lost, why=why)

    def _write(self, own: bool, batch: Sequence[AuditEntry]) -> None:
        self._files[own].append(b"".join(msgspec.json.encode(entry) + b"\n" for entry in batch))

    async def newest(
        self, matches: Callable[[AuditEntry], bool], limit: int
    ) -> tuple[AuditEntry, ...]:
        """Return the newest matching entries, newest first."""
        await self.flush()
        return await asyncio.to_thread(self._newest, matches, limit)

    def _newest(self, matches: Callable[[AuditEntry], bool], limit: int) -> tuple[AuditEntry, ...]:
        entries = heapq.merge(
            *(_entries(file) for file in self._files.values()),
            key=lambda entry: entry.at.timestamp(),
            reverse=True,
        )
        return tuple(itertools.islice(filter(matches, entries), limit))


def _entries(file: "_RotatedFile") -> Iterator[AuditEntry]:
    for line in file.newest_lines():
        try:
            yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # the end of a line that a crash cut off


class _RotatedFile:
    """A file of lines and its predecessors, of which the oldest are removed."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max

    def append(self, data: bytes) -> None:
        """Append whole lines durably."""
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # a crash cut the last line off
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size >= self._bytes_max:
            self._rotate()

    def newest_lines(self) -> Iterator[bytes]:
        """Return all lines, the newest first."""
        for number in range(FILES_MAX):
            try:
                lines = self._numbered(number).read_bytes().splitlines()
            except FileNotFoundError:
                continue  # the newest one, right after a rotation
            yield from reversed(lines)

    def _rotate(self) -> None:
        for number in range(FILES_MAX - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")
