"""One stream's file and its index, written at their end and nowhere else."""

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from muster.daemon.errors import DaemonError
from muster.protocol.logs import StreamKind
from orchestrator.shell.logs.index import (
    LENGTH_MAX,
    RECORD_BYTES,
    Entry,
    IndexFile,
    incomplete_tail,
    index_path,
    pack,
)

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LogStoreError(DaemonError):
    """Log bytes could not be written or read; the agent still has what was not acknowledged."""


class NotWantedError(LogStoreError):
    """A stream that its task must not have: it is not stored, now or later."""


class Late(NamedTuple):
    """Bytes of a stream, from `offset` on, that could not be stored since `since` (UTC seconds).
    Nothing is lost: the node has them until they are.
    """

    offset: int
    since: float
    why: str


class StreamKey(NamedTuple):
    """One stream of a job; also the order of streams whose bytes have the same time."""

    attempt: int
    node_rank: int
    kind: str
    rank: int  # -1 where the stream is the node's

    @property
    def file_name(self) -> str:
        return self.kind if self.rank < 0 else f"{self.kind}.{self.rank}"


def key_of_file(attempt: int, node_rank: int, name: str) -> StreamKey | None:
    """The stream that a file name stands for, or None where it is another file."""
    kind, dot, rank = name.partition(".")
    if kind not in {k.value for k in StreamKind} or (
        dot and not (rank.isascii() and rank.isdecimal())
    ):
        return None
    return StreamKey(attempt, node_rank, kind, int(rank) if dot else -1)


class StreamFile:
    """A stream as it is on disk. `size` counts its bytes, `ended` says that there will be no more.

    The files are open only between `append` and `release`: there may be more streams than
    descriptors. Nothing here syncs; the store does, for all streams together.
    """

    def __init__(self, key: StreamKey, path: Path) -> None:
        """Take up what is on disk, if anything is."""
        self.key = key
        self.path = path
        self.size = _size(path)
        self.last_seq = 0
        self.last_ts = 0.0
        self.ended = False
        self._covered = 0
        self._pending = b""
        self._fds: tuple[int, int] | None = None
        self._load(IndexFile(path))

    @property
    def is_open(self) -> bool:
        return self._fds is not None

    def repair(self, seq: int) -> bool:
        """Index what a crash left without a record, as arrival `seq`; False: there is nothing."""
        if self._covered >= self.size or self.ended:
            return False
        data, _ = self._open()
        ts = self.last_ts or os.fstat(data).st_mtime
        tail = os.pread(data, 3, max(self._covered, self.size - 3))
        self._pending = b""
        try:
            return self._cover(tail, ts, seq)
        except OSError:
            self._mend()  # on a full disk; what is appended later takes these bytes along
            return False

    def append(self, offset: int, data: memoryview, ts: float, seq: int) -> int | None:
        """Write what is new of `data`, which begins at `offset`; return how many bytes that is.

        None: bytes are missing before it, nothing was written. Raises LogStoreError.
        """
        if offset > self.size:
            return None
        new = data[self.size - offset :]
        if not new or self.ended:
            return 0
        fd, _ = self._open()
        try:
            written = 0
            while written < len(new):
                count = os.write(fd, new[written:])
                written += count
                self.size += count
            self._cover(bytes(new[-3:]), ts, seq)
        except OSError as error:
            self._mend()
            raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        return len(new)

    def end(self, ts: float, seq: int) -> None:
        """Say that the stream is complete. Raises LogStoreError."""
        if self.ended:
            return
        _, index = self._open()
        try:
            if self._covered < self.size:
                self._pending = b""
                self._record(index, self.size, ts, seq)
            _write(index, pack(Entry(self.size, 0, max(ts, self.last_ts), seq)))
        except OSError as error:
            self._mend()
            raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        self.last_seq = seq
        self.ended = True

    def release(self) -> None:
        """Close the files; the next `append` opens them again."""
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
            self._fds = None

    def _mend(self) -> None:
        """After a write that failed: no half record in the index, and the tail as it is."""
        data, index = self._open()
        whole = os.fstat(index).st_size // RECORD_BYTES
        with contextlib.suppress(OSError):
            os.ftruncate(index, whole * RECORD_BYTES)
        begin = max(self._covered, self.size - 3)
        self._pending = os.pread(data, self.size - begin, begin)

    def _open(self) -> tuple[int, int]:
        if self._fds is None:
            try:
                data = os.open(self.path, _FLAGS, 0o600)
                try:
                    index = os.open(index_path(self.path), _FLAGS, 0o600)
                except OSError:
                    os.close(data)
                    raise
            except OSError as error:
                raise LogStoreError(f"{self.path} cannot be opened: {error.strerror}") from error
            self._fds = (data, index)
        return self._fds

    def _cover(self, last_bytes: bytes, ts: float, seq: int) -> bool:
        """Index what has been written, but for the beginning of an incomplete character."""
        tail = (self._pending + last_bytes)[-3:]
        held = incomplete_tail(tail)
        self._pending = tail[len(tail) - held :]
        if self.size - held <= self._covered:
            return False
        _, index = self._open()
        self._record(index, self.size - held, ts, seq)
        return True

    def _record(self, index: int, end: int, ts: float, seq: int) -> None:
        self.last_ts = max(ts, self.last_ts)
        while self._covered < end:
            length = min(end - self._covered, LENGTH_MAX)
            _write(index, pack(Entry(self._covered, length, self.last_ts, seq)))
            self._covered += length
        self.last_seq = seq

    def _load(self, index: IndexFile) -> None:
        """Take up the index; cut what a crash left of a record, or of records of lost bytes."""
        whole = index.bisect(len(index), lambda entry: entry.end > self.size)
        if _size(index.path) > whole * RECORD_BYTES:
            os.truncate(index.path, whole * RECORD_BYTES)
        if whole == 0:
            return
        last = index.read(whole - 1, whole)[0]
        self.last_seq, self.last_ts, self._covered = last.seq, last.ts, last.end
        self.ended = last.length == 0
        if self._covered < self.size <= self._covered + 3:
            with self.path.open("rb") as file:
                file.seek(self._covered)
                self._pending = file.read(3)


def _write(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):
        raise OSError(28, "No space left on device")


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
