"""`muster logs --download`: write each stream of a job to its own file, byte for byte.

One connection brings all streams merged; each record is written at its offset in its stream's file.
A resume file beside them holds the progress, so that a repeated command continues there. Writing
the same bytes to the same offset twice does no harm.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from muster.cli.errors import RefusedError
from muster.cli.output.format import note, safe
from muster.cli.output.log_printer import record_bytes
from muster.client import BadAnswerError, Client, LogQuery
from muster.http.views import JobView, LogRecord, LogTrailer
from muster.protocol.link.log_channel import StreamKind

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_NOTE_EVERY_BYTES: Final = 16 << 20
_OPEN_MAX: Final = 128
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_KINDS: Final = frozenset(kind.value for kind in StreamKind)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """The resume file: the job and query of the download, the file sizes, and the next cursor."""

    job: int
    submitted_at: str
    choice: dict[str, str | int | float | None]
    cursor: str | None = None
    sizes: dict[str, int] = {}


def download(
    client: Client, view: JobView, query: LogQuery, folder: Path
) -> tuple[list[Path], str]:
    """Write the streams that `query` selects into `folder`, creating it if needed.

    Returns the files, and the trailer's message about missing bytes. Raises OSError, ClientError,
    and RefusedError if the folder holds the files of another job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    query = replace(query, tail=None, since=None)
    choice = {**query.parameters(None), "follow": None}
    wanted = _State(job=view.id, submitted_at=view.submitted_at.isoformat(), choice=choice)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    files = _Files(at, folder, wanted)
    missing = ""
    try:
        files.resume()
        for entry in client.logs(view.id, replace(query, cursor=files.state.cursor)):
            if isinstance(entry, LogTrailer):
                missing = entry.reason or ""
                if missing:
                    note(safe(missing))
            elif entry.gap is not None:
                note(f"{safe(entry.node)} {safe(entry.stream)}: {safe(entry.gap)}")
            else:
                files.write(entry)
    finally:
        files.close()
        os.close(at)
    return [folder / name for name in sorted(files.state.sizes)], missing


@dataclass
class _Files:
    """The files of one download. All names are built from numbers and validated strings."""

    at: int
    folder: Path
    state: _State
    open: dict[str, int] = field(default_factory=dict)
    unnoted: int = 0

    @property
    def _note(self) -> str:
        return f".job-{self.state.job}.resume"

    def resume(self) -> None:
        """Continue an earlier download if its resume file matches the files."""
        try:
            fd = os.open(self._note, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.at)
        except FileNotFoundError:
            return
        with os.fdopen(fd, "rb") as file:
            try:
                found = msgspec.json.decode(file.read(), type=_State)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return
        if (found.job, found.submitted_at) != (self.state.job, self.state.submitted_at):
            raise RefusedError(
                f"{self.folder} holds the logs of another job {found.job}; name another folder"
            )
        if found.choice == self.state.choice and all(map(self._is_there, found.sizes.items())):
            self.state = found

    def write(self, record: LogRecord) -> None:
        """Write the record's bytes at their offset."""
        data = record_bytes(record)
        name = file_name(self.state.job, record)
        fd = self.open.get(name)
        if fd is None:
            fd = self._open(name)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], record.offset + done)
        sizes = self.state.sizes
        sizes[name] = max(sizes.get(name, 0), record.offset + len(data))
        self.state = msgspec.structs.replace(self.state, cursor=record.cursor)
        self.unnoted += len(data)
        if self.unnoted >= _NOTE_EVERY_BYTES:
            self.save()

    def save(self) -> None:
        """Save the progress. Runs after the bytes are written, so that it never claims too much."""
        self.unnoted = 0
        new = f"{self._note}.new"
        fd = os.open(new, _FLAGS | os.O_TRUNC, 0o600, dir_fd=self.at)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(self.state))
        os.rename(new, self._note, src_dir_fd=self.at, dst_dir_fd=self.at)

    def close(self) -> None:
        for fd in self.open.values():
            os.close(fd)
        self.open.clear()
        self.save()

    def _open(self, name: str) -> int:
        if len(self.open) >= _OPEN_MAX:
            os.close(self.open.pop(next(iter(self.open))))
        # Truncate files of an older download with another query, whose bytes could remain behind
        # ours.
        fresh = 0 if name in self.state.sizes else os.O_TRUNC
        fd = self.open[name] = os.open(name, _FLAGS | fresh, 0o666, dir_fd=self.at)
        return fd

    def _is_there(self, file: tuple[str, int]) -> bool:
        name, size = file
        try:
            return os.stat(name, dir_fd=self.at, follow_symlinks=False).st_size >= size
        except FileNotFoundError:
            return False


def file_name(job: int, record: LogRecord) -> str:
    """Return a name such as `job-42.attempt-1.node-0-gpu-03.rank-11.stdout`. Raises
    BadAnswerError for node or stream names that no coordinator sends, because files must stay
    inside the folder."""
    if record.stream not in _KINDS or (record.node and not _NODE.fullmatch(record.node)):
        raise BadAnswerError(
            f"a log of node {record.node!r}, stream {record.stream!r} cannot be a file",
            "compare `muster version` on both sides",
        )
    node = "-".join(part for part in (str(record.node_rank or 0), record.node) if part)
    rank = "" if record.rank is None else f".rank-{record.rank}"
    return f"job-{job}.attempt-{record.attempt}.node-{node}{rank}.{record.stream}"
