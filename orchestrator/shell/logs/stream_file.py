"""A stream's data file and its index, both append-only."""

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

from muster.daemon.errors import DaemonError
from muster.protocol.link.log_channel import StreamKind
from orchestrator.shell.logs.gaps import Gap
from orchestrator.shell.logs.index import (
    CLOSES_GAP,
    LENGTH_MAX,
    RECORD_BYTES,
    Entry,
    IndexFile,
    gap_entry,
    incomplete_tail,
    index_path,
    pack,
)

_LOOK_BYTES: Final = 128 * 1024
_LOOKS_MAX: Final = 16
_BLOCK: Final = 64 * 1024
_OFFSET_MAX: Final = (1 << 63) - 1  # of a file
# A file of this length is impossible, now and later.
_TOO_LONG: Final = frozenset({errno.EFBIG, errno.EINVAL, errno.EOVERFLOW})
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LogStoreError(DaemonError):
    """Log bytes could not be written or read. The agent keeps unacknowledged bytes."""


class NotWantedError(LogStoreError):
    """A stream that its task may not have. It is never stored."""


class Late(NamedTuple):
    """Bytes of a stream from `offset` on that could not be stored since `since` (UTC seconds).

    Nothing is lost: the node keeps the bytes until they are stored.
    """

    offset: int
    since: float
    why: str


class StreamKey(NamedTuple):
    """A stream of a job. Its order also breaks ties between bytes of the same time."""

    attempt: int
    node_rank: int
    kind: str
    rank: int  # -1 for a stream of the node

    @property
    def file_name(self) -> str:
        return self.kind if self.rank < 0 else f"{self.kind}.{self.rank}"


class StreamMark(NamedTuple):
    """State of a stream at one instant, to return to."""

    size: int
    stored: int
    gap: int
    last_seq: int
    last_ts: float
    ended: bool
    covered: int
    pending: bytes
    data_bytes: int  # of the file
    index_bytes: int


def key_of_file(attempt: int, node_rank: int, name: str) -> StreamKey | None:
    """Return the stream that a file name denotes, or None for other files."""
    kind, dot, rank = name.partition(".")
    if kind not in {k.value for k in StreamKind} or (
        dot and not (rank.isascii() and rank.isdecimal())
    ):
        return None
    return StreamKey(attempt, node_rank, kind, int(rank) if dot else -1)


class StreamFile:
    """A stream on disk. `size` counts its bytes; `ended` means that no more follow.

    If the file system cannot have so long a file, the stream ends in a gap (TOO_LONG): `size`
    counts on, while the file stays as it is. After a restart it counts from the file's end again.

    `stored` is the disk usage of the stream and its index: a gap is a hole of the file.

    The files are open only between `append` and `release`, because there may be more streams than
    descriptors. Nothing here syncs; the store syncs all streams together and calls `keep` with what
    is on disk, or `roll_back` if the disk failed.
    """

    def __init__(self, key: StreamKey, path: Path) -> None:
        """Load the files from disk, if they exist."""
        self.key = key
        self.path = path
        self.size = _size(path)
        self.stored = allocated(path) + allocated(index_path(path))
        self.gap: int = 0  # reason of the gap at the end of the stream, or 0
        self.last_seq = 0
        self.last_ts = 0.0
        self.ended = False
        self._covered = 0
        self._pending = b""
        self._fds: tuple[int, int] | None = None
        self.was_synced = False
        self.is_suspect = False  # an fsync failed, and none has succeeded since
        self._kept: StreamMark | None = None  # on disk; before the first write, all that was found
        self._is_uncut = False  # the files are longer than `_kept`
        self._load(IndexFile(path))

    @property
    def indexed(self) -> int:
        """Number of bytes that have a record in the index."""
        return self._covered

    @property
    def is_open(self) -> bool:
        return self._fds is not None

    def repair(self, seq: int) -> bool:
        """Index bytes left without a record by a crash, as arrival `seq`. False if none."""
        if self._covered >= self.size or self.ended:
            return False
        data, _ = self._open()
        self._pending = b""
        # A power cut may leave the length of a gap without its record. Those bytes were not
        # acknowledged, so the node sends them again.
        hole = os.lseek(data, self._covered, os.SEEK_HOLE)
        if hole < self.size:
            os.ftruncate(data, hole)
            self.size = hole
            if self._covered >= hole:
                return False
        # Nor has it always written the bytes, which then are zeros.
        self.size = _end_without_zeros(data, self._covered, self.size)
        os.ftruncate(data, self.size)
        if self._covered >= self.size:
            return False
        ts = self.last_ts or os.fstat(data).st_mtime
        tail = os.pread(data, 3, max(self._covered, self.size - 3))
        try:
            return self._cover(tail, ts, seq)
        except OSError:
            self._mend()  # the disk is full; the next append indexes these bytes as well
            return False

    def append(self, offset: int, data: memoryview, ts: float, seq: int) -> int | None:
        """Write the new part of `data`, which begins at `offset`, and return its length.

        Returns None and writes nothing if bytes before `offset` are missing. Raises LogStoreError.
        """
        if offset > self.size:
            return None
        new = data[self.size - offset :]
        if not new or self.ended:
            return 0
        if self.gap == Gap.TOO_LONG:
            return self._count(len(new))
        before = self.size
        fd, index = self._open()
        try:
            if self.gap:
                self._note(index, Entry(self.size, CLOSES_GAP, ts, seq))
                self.gap = 0
            written = 0
            while written < len(new):
                count = os.write(fd, new[written:])
                written += count
                self.size += count
                self.stored += count
            self._cover(bytes(new[-3:]), ts, seq)
        except OSError as error:
            too_long = _is_too_long(error)
            if too_long and self.size > before:
                self.size -= 1  # the gap needs this byte of the file
                os.ftruncate(fd, self.size)
            self._mend()
            if too_long:
                self._cut(ts, seq)
                self.size = before + len(new)
                return len(new)
            raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        return len(new)

    def skip(self, offset: int, length: int, gap: Gap, ts: float, seq: int) -> int | None:
        """Count `length` bytes from `offset` without storing them. Results are those of `append`.

        What follows a gap of the same kind extends it. Raises LogStoreError.
        """
        if offset > self.size:
            return None
        count = offset + length - self.size
        if count <= 0 or self.ended:
            return 0
        if self.gap == Gap.TOO_LONG:
            return self._count(count)
        fd, index = self._open()
        before, last_seq = os.fstat(index).st_size, self.last_seq
        try:
            if self.size + count > _OFFSET_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            if self.gap != gap:
                if self._covered < self.size:
                    self._pending = b""
                    self._record(index, self.size, ts, seq)
                    before, last_seq = os.fstat(index).st_size, self.last_seq
                # Written before the file grows: after a crash in between, the record is dropped.
                self._note(index, gap_entry(self.size, gap, ts, seq))
            os.ftruncate(fd, self.size + count)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(index, before)
                self.last_seq = last_seq
            self._mend()
            if _is_too_long(error):
                self._cut(ts, seq)
                return self._count(count)
            raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        self.size += count
        self._covered, self.gap = self.size, int(gap)
        return count

    def _count(self, count: int) -> int:
        """Count bytes after a gap that the file itself does not have."""
        self.size += count
        return count

    def _cut(self, ts: float, seq: int) -> None:
        """Begin the gap TOO_LONG. Raises LogStoreError if its record cannot be written.

        The gap has one byte of the file, as a record of nothing is dropped after a restart. If not
        even that byte is possible, the gap is known until the restart only.
        """
        data, index = self._open()
        before = os.fstat(index).st_size
        try:
            if self._covered < self.size:
                self._pending = b""
                self._record(index, self.size, ts, seq)
                before = os.fstat(index).st_size
            self._note(index, gap_entry(self.size, Gap.TOO_LONG, ts, seq))
            os.ftruncate(data, self.size + 1)
            self._covered = self.size + 1
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(index, before)
            if error.errno not in _TOO_LONG:
                self._mend()
                raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        self.gap = int(Gap.TOO_LONG)

    def end(self, ts: float, seq: int) -> None:
        """Mark the stream as complete. Raises LogStoreError."""
        if self.ended:
            return
        _, index = self._open()
        end = self._covered if self.gap == Gap.TOO_LONG else self.size
        try:
            if self._covered < end:
                self._pending = b""
                self._record(index, end, ts, seq)
            self._note(index, Entry(end, 0, ts, seq))
        except OSError as error:
            self._mend()
            raise LogStoreError(f"{self.path} cannot be written: {error.strerror}") from error
        self.ended = True

    def mark(self) -> StreamMark:
        """Return the present state. Raises OSError."""
        return StreamMark(
            self.size,
            self.stored,
            self.gap,
            self.last_seq,
            self.last_ts,
            self.ended,
            self._covered,
            self._pending,
            _size(self.path),
            _size(index_path(self.path)),
        )

    def keep(self, mark: StreamMark) -> None:
        """Record that the state of `mark` is on disk."""
        self._kept = mark
        self.was_synced = True
        self.is_suspect = False

    def roll_back(self) -> None:
        """Return to what is known to be on disk, because an fsync failed.

        If the files cannot be cut now, nothing is written before they are.
        """
        if self._kept is None:
            return
        kept = self._kept
        self.size, self.stored, self.gap = kept.size, kept.stored, kept.gap
        self.last_seq, self.last_ts, self.ended = kept.last_seq, kept.last_ts, kept.ended
        self._covered, self._pending = kept.covered, kept.pending
        self.is_suspect = self._is_uncut = True
        self.release()
        with contextlib.suppress(LogStoreError):
            self._open()

    def release(self) -> None:
        """Close the files; the next `append` reopens them."""
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
            self._fds = None

    def _mend(self) -> None:
        """Recover from a failed write: truncate a partial index record and reread the tail."""
        data, index = self._open()
        whole = os.fstat(index).st_size // RECORD_BYTES
        with contextlib.suppress(OSError):
            os.ftruncate(index, whole * RECORD_BYTES)
        if self.gap == Gap.TOO_LONG:
            return
        begin = max(self._covered, self.size - 3)
        self._pending = os.pread(data, self.size - begin, begin)

    def _open(self) -> tuple[int, int]:
        if self._fds is None:
            try:
                if self._kept is None:
                    self._kept = self.mark()
                data = os.open(self.path, _FLAGS, 0o600)
                try:
                    index = os.open(index_path(self.path), _FLAGS, 0o600)
                except OSError:
                    os.close(data)
                    raise
            except OSError as error:
                raise LogStoreError(f"{self.path} cannot be opened: {error.strerror}") from error
            self._fds = (data, index)
        if self._is_uncut:
            self._cut_to_kept(*self._fds)
        return self._fds

    def _cut_to_kept(self, data: int, index: int) -> None:
        assert self._kept is not None
        try:
            os.ftruncate(data, self._kept.data_bytes)
            os.ftruncate(index, self._kept.index_bytes)
        except OSError as error:
            raise LogStoreError(f"{self.path} cannot be cut: {error.strerror}") from error
        self._is_uncut = False

    def _cover(self, last_bytes: bytes, ts: float, seq: int) -> bool:
        """Index the written bytes, except the beginning of an incomplete character."""
        tail = (self._pending + last_bytes)[-3:]
        held = incomplete_tail(tail)
        self._pending = tail[len(tail) - held :]
        if self.size - held <= self._covered:
            return False
        _, index = self._open()
        self._record(index, self.size - held, ts, seq)
        return True

    def _record(self, index: int, end: int, ts: float, seq: int) -> None:
        while self._covered < end:
            length = min(end - self._covered, LENGTH_MAX)
            self._note(index, Entry(self._covered, length, ts, seq))
            self._covered += length

    def _note(self, index: int, entry: Entry) -> None:
        self.last_ts = max(entry.ts, self.last_ts)
        _write(index, pack(entry._replace(ts=self.last_ts)))
        self.stored += RECORD_BYTES
        self.last_seq = entry.seq

    def _load(self, index: IndexFile) -> None:
        """Load the index. Truncate partial records, and records of bytes lost in a crash."""
        whole = index.bisect(_without_zeros(index), lambda entry: entry.end > self.size)
        if _size(index.path) > whole * RECORD_BYTES:
            os.truncate(index.path, whole * RECORD_BYTES)
        if whole == 0:
            return
        last = index.read(whole - 1, whole)[0]
        if last.gap and _has_bytes(self.path, last.start):
            # A power cut has lost the record that closes the gap. The bytes after it were not
            # acknowledged, but their start is unknown, so the node sends all of them again.
            os.truncate(self.path, last.start)
            self.size = last.start
            self._load(index)
            return
        self.last_seq, self.last_ts, self._covered = last.seq, last.ts, last.end
        self.ended = last.length == 0
        self.gap = last.gap
        if self.gap:
            self._covered = self.size
        if self._covered < self.size <= self._covered + 3:
            with self.path.open("rb") as file:
                file.seek(self._covered)
                self._pending = file.read(3)


def _without_zeros(index: IndexFile) -> int:
    """Return the number of records before the zeros at the end.

    After a power cut the end of a file may be zeros: its length was on disk, and its content not. A
    record of zeros would mark the end of the stream.
    """
    count = len(index)
    for entry in index.backward(0, count):
        if entry.seq:
            break
        count -= 1
    return count


def _is_too_long(error: OSError) -> bool:
    """True if no file can be so long. A limit of this process can be raised, so it is met like a
    full disk."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return error.errno in _TOO_LONG and limit == resource.RLIM_INFINITY


def _has_bytes(path: Path, start: int) -> bool:
    """True if a file has nonzero bytes from `start` on. Reads a bounded amount."""
    with path.open("rb", buffering=0) as file:
        for _ in range(_LOOKS_MAX):
            try:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError:
                return False
            data = os.pread(file.fileno(), _LOOK_BYTES, start)
            if data.strip(b"\0"):
                return True
            start += len(data)
    return False


def _write(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):
        raise OSError(28, "No space left on device")


def allocated(path: str | Path) -> int:
    """Return the disk usage of a file in bytes, without holes. 0 if that cannot be read: the file
    has been removed, or its inode is damaged.
    """
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return min(status.st_size, status.st_blocks * 512)


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _end_without_zeros(fd: int, begin: int, end: int) -> int:
    """Return the end of the file's part from `begin` to `end` without the zeros that end it."""
    while end > begin:
        length = min(_BLOCK, end - begin)
        kept = len(os.pread(fd, length, end - length).rstrip(b"\0"))
        end -= length - kept
        if kept:
            break
    return end
