"""Removal mark of a job's logs: when retention removed them, and why."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from muster.daemon.durable_files import write_atomic
from muster.protocol.ids import JobId
from orchestrator.journal.backup import REMOVED_NAME


class Removed(msgspec.Struct, frozen=True):
    """Logs of a job that were removed at `at` (UTC seconds)."""

    at: float
    why: str

    def text(self, job: JobId) -> str:
        """Return a sentence for readers of removed logs."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"the logs of job {job} were removed at {when}: {self.why}"


def read_removed(root: Path) -> Removed | None:
    """Return the mark in a job's folder, or None if its logs are kept. Raises OSError."""
    try:
        return msgspec.json.decode((root / REMOVED_NAME).read_bytes(), type=Removed)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Removed(0.0, "the removal mark is unreadable")


def write_removed(root: Path, mark: Removed) -> None:
    """Write the mark to disk. Raises FileError."""
    write_atomic(root / REMOVED_NAME, msgspec.json.encode(mark), 0o600)


def is_mark(name: str) -> bool:
    return name == REMOVED_NAME
