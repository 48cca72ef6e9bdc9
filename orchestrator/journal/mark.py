"""The file `journal.open`, which exists while the write-ahead log may hold data that the database
lacks.

It names the database and a lower bound of the commits. So the next start notices a removed,
truncated or emptied log, and a replaced database. Once the database holds all of the log, the file
is renamed to `journal.closed`. Its bound still holds, so that an older copy of the database is
noticed.
"""

import contextlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from muster.daemon.durable_files import sync_directory, sync_file
from orchestrator.journal.errors import JournalError
from orchestrator.journal.wal import salt_of

FILE_NAME: Final = "journal.open"
CLOSED_NAME: Final = "journal.closed"
_FIRST: Final = "muster-journal-1"
_NO_DATABASE: Final = "-"


@dataclass(frozen=True, slots=True)
class Note:
    """Contents of the mark. `database` names the file ("": unknown). At least `epoch` and `seq`
    were committed. `salt` was that of the log at that time (0: unknown).
    """

    database: str
    epoch: int
    seq: int
    salt: int

    def line(self) -> bytes:
        """Return a line of fixed length, so that overwriting an older line leaves no rest of it."""
        name = self.database or _NO_DATABASE
        text = f"{_FIRST} {name:<32} {self.epoch:020} {self.seq:020} {self.salt:08x}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class JournalMark:
    """The file, kept open: an update is one write of a few bytes into one sector.

    It is not synced with each commit. Because it is written after the commit, it is true whenever
    it reaches the disk.
    """

    def __init__(self, journal: Path, note: Note) -> None:
        """Write the file; durable on return. Raises OSError."""
        self._log = journal.with_name(f"{journal.name}-wal")
        self._note = note
        self._stale = True
        self._fd = os.open(
            journal.with_name(FILE_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            self._write()
            os.fsync(self._fd)
            sync_directory(journal.parent)
        except OSError:
            self.close()
            raise

    def committed(self, seq: int) -> None:
        """The records up to `seq` are on disk."""
        self._note = Note(self._note.database, self._note.epoch, seq, self._note.salt)
        with contextlib.suppress(OSError):  # the older contents stay true
            self._write()

    def checkpointed(self) -> None:
        """Sync the mark, because the next commit may restart the log."""
        self._stale = True
        with contextlib.suppress(OSError):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        if self._stale:
            self._note = Note(
                self._note.database, self._note.epoch, self._note.seq, self._salt_now()
            )
            self._stale = False
        os.pwrite(self._fd, self._note.line(), 0)

    def _salt_now(self) -> int:
        with self._log.open("rb") as log:
            return salt_of(log.read(32))


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark that exists. `note` is None if it is unreadable."""

    note: Note | None

    @classmethod
    def read(cls, journal: Path) -> Self | None:
        """Read the mark. Returns None if there is no file. Raises JournalError."""
        line = _read(journal.with_name(FILE_NAME))
        return None if line is None else cls(_parse(line))


def closed_note(journal: Path) -> Note | None:
    """The note of the last time that all of the log was in the database. Returns None if there is
    none that can be read. Raises JournalError."""
    line = _read(journal.with_name(CLOSED_NAME))
    return None if line is None else _parse(line)


def close_mark(journal: Path) -> None:
    """Record that all is in the database itself. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        mark = journal.with_name(FILE_NAME)
        sync_file(mark)
        os.rename(mark, journal.with_name(CLOSED_NAME))
        sync_directory(journal.parent)


def _read(mark: Path) -> bytes | None:
    try:
        return mark.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(
            f"{mark} cannot be read ({error.strerror}); give it to the user of this daemon"
        ) from error


def _parse(line: bytes) -> Note | None:
    try:
        text, _, crc = line.decode().rstrip("\n").rpartition(" ")
        first, database, epoch, seq, salt = text.split()
        if first != _FIRST or zlib.crc32(text.encode()) != int(crc, 16):
            return None
        name = "" if database == _NO_DATABASE else database
        return Note(name, int(epoch), int(seq), int(salt, 16))
    except ValueError:
        return None
