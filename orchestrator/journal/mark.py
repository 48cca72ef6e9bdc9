"""`journal.open`: there while the write-ahead log may hold what the database does not.

It says which database that is and what was committed at least, so that a log that was removed, cut
or emptied, and a database that was exchanged, are noticed at the next start.
"""

import contextlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from muster.daemon.durable_files import sync_directory
from orchestrator.journal.errors import JournalError
from orchestrator.journal.wal import salt_of

FILE_NAME: Final = "journal.open"
_FIRST: Final = "muster-journal-1"
_NO_DATABASE: Final = "-"


@dataclass(frozen=True, slots=True)
class Note:
    """`database` names the file ("": not known), `epoch` and `seq` were committed at least, `salt`
    was that of the log then (0: not known)."""

    database: str
    epoch: int
    seq: int
    salt: int

    def line(self) -> bytes:
        """Of one length, however great the numbers: an older one leaves nothing behind it."""
        name = self.database or _NO_DATABASE
        text = f"{_FIRST} {name:<32} {self.epoch:020} {self.seq:020} {self.salt:08x}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class Mark:
    """The file, kept open: a note is one write of a few bytes into one sector.

    It is not synced with each commit. What it says is true whenever it reaches the disk: it is
    written after the commit.
    """

    def __init__(self, journal: Path, note: Note) -> None:
        """Durable on return. Raises OSError."""
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
        with contextlib.suppress(OSError):  # what it says already stays true
            self._write()

    def checkpointed(self) -> None:
        """The log may be begun anew by the next commit; what was noted is to be on disk."""
        self._stale = True
        with contextlib.suppress(OSError):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Safe to call twice."""
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
    """The file is there. `note` is None if the file is damaged."""

    note: Note | None

    @classmethod
    def read(cls, journal: Path) -> Self | None:
        """None: there is no such file. Raises JournalError."""
        mark = journal.with_name(FILE_NAME)
        try:
            line = mark.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(
                f"{mark} cannot be read ({error.strerror}); give it to the user of this daemon"
            ) from error
        try:
            text, _, crc = line.decode().rstrip("\n").rpartition(" ")
            first, database, epoch, seq, salt = text.split()
            if first != _FIRST or zlib.crc32(text.encode()) != int(crc, 16):
                return cls(None)
            name = "" if database == _NO_DATABASE else database
            return cls(Note(name, int(epoch), int(seq), int(salt, 16)))
        except ValueError:
            return cls(None)


def unmark(journal: Path) -> None:
    """All is in the database itself. Raises OSError."""
    journal.with_name(FILE_NAME).unlink(missing_ok=True)
    sync_directory(journal.parent)
