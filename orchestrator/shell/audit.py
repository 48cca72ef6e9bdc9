"""The audit log: a file of JSON lines that is only appended to, and rotated by size.

Entries are written by a thread, so that a slow disk delays no request. They are bounded in memory
and on disk. An entry that cannot be written is counted and logged.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Never

import msgspec
import structlog

from muster.http.audit import AuditEntry

FILE: Final = "audit.jsonl"
BYTES_MAX: Final = 8 << 20
FILES_MAX: Final = 8
_WAITING_MAX: Final = 10_000

_log = structlog.get_logger("muster.audit")
_decode: Final = msgspec.json.Decoder(AuditEntry).decode


class AuditLog:
    """The audit log in a directory."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._path = folder / FILE
        self._bytes_max = bytes_max
        self._waiting: deque[AuditEntry] = deque()
        self._work = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lost = 0

    def add(self, entry: AuditEntry) -> None:
        """Append an entry soon. Never waits."""
        if len(self._waiting) >= _WAITING_MAX:
            self._lost += 1
            return
        self._waiting.append(entry)
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
        batch, lost = list(self._waiting), self._lost
        self._waiting.clear()
        self._lost = 0
        if not batch:
            return
        why = "too many at once"
        try:
            await asyncio.to_thread(self._write, batch)
        except OSError as error:
            lost += len(batch)
            why = str(error)
        if lost:
            _log.error("audit_entries_lost", count=lost, why=why)

    async def newest(
        self, matches: Callable[[AuditEntry], bool], limit: int
    ) -> tuple[AuditEntry, ...]:
        """Return the newest matching entries, newest first."""
        await self.flush()
        return await asyncio.to_thread(self._newest, matches, limit)

    def _write(self, batch: Sequence[AuditEntry]) -> None:
        data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in batch)
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

    def _rotate(self) -> None:
        for number in range(FILES_MAX - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{FILE}.{number}")

    def _newest(self, matches: Callable[[AuditEntry], bool], limit: int) -> tuple[AuditEntry, ...]:
        found: list[AuditEntry] = []
        for entry in self._entries():
            if matches(entry):
                found.append(entry)
                if len(found) == limit:
                    break
        return tuple(found)

    def _entries(self) -> Iterator[AuditEntry]:
        for number in range(FILES_MAX):
            try:
                lines = self._numbered(number).read_bytes().splitlines()
            except FileNotFoundError:
                continue  # the newest one, right after a rotation
            for line in reversed(lines):
                try:
                    yield _decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # the end of a line that a crash cut off
