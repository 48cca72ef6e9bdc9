"""Many streams merged into one: history by time, live output by arrival.

A reader first records how many arrivals there have been (the boundary). Arrivals before the
boundary are its history, merged by the time at which an agent read them. Later ones follow in order
of arrival. A cursor is a position in that order and includes the boundary. A reader that resumes
from a cursor misses nothing and sees nothing twice.

The index of a stream has no checksums. A reader checks that its records follow from each other and
reach as far as the store knows, so that a damaged index is an error and no shorter log.

Everything here reads files: call it from a thread.
"""

import contextlib
import heapq
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from orchestrator.shell.logs.gaps import gap_text
from orchestrator.shell.logs.index import Entry, IndexFile, incomplete_tail, index_path
from orchestrator.shell.logs.stream_file import LogStoreError, StreamKey, key_of_file

PIECE_BYTES: Final = 64 * 1024
_TAIL_BYTES_MAX: Final = 64 << 20
_FILES_OPEN_MAX: Final = 16
_SLICE_RECORDS: Final = 512
_SLICE_BYTES: Final = 1 << 20
_HISTORY: Final = re.compile(
    r"h([0-9]{1,18})\.(-?0x[01]\.[0-9a-f]{1,13}p-?[0-9]{1,4})\.([0-9]{1,9})\.([0-9]{1,9})"
    r"\.([a-z]+(?:\.[0-9]{1,9})?)\.([0-9]{1,18})"
)
_LIVE: Final = re.compile(r"l([0-9]{1,18})\.([0-9]{1,18})")


class BadCursorError(ValueError):
    """The text is not a log cursor."""


@dataclass(frozen=True, slots=True)
class History:
    """Position in history before `boundary`: after byte `offset` of `stream`, read at `ts`."""

    boundary: int
    ts: float
    stream: StreamKey
    offset: int

    def __str__(self) -> str:
        key = self.stream
        where = f"{key.attempt}.{key.node_rank}.{key.file_name}"
        # Without the plus sign, which a query string decodes as a space.
        return f"h{self.boundary}.{self.ts.hex().replace('+', '')}.{where}.{self.offset}"


@dataclass(frozen=True, slots=True)
class Live:
    """Position in live output: after byte `offset` of the stream to which arrival `seq` belongs."""

    seq: int
    offset: int

    def __str__(self) -> str:
        return f"l{self.seq}.{self.offset}"


Place = History | Live


class Source(NamedTuple):
    """Stream to read, from byte `offset` on. `last_seq` is its newest arrival, and `indexed` counts
    the bytes that its index has at least.

    Bytes that an agent read before `since` (UTC seconds) are skipped.
    """

    key: StreamKey
    path: Path
    last_seq: int
    since: float = 0.0
    offset: int = 0
    indexed: int = 0


class Piece(NamedTuple):
    """Bytes of one stream from `offset`, or a gap with its reason, and the position right after."""

    key: StreamKey
    offset: int
    ts: float
    data: bytes
    place: Place
    gap: str | None = None


def parse_cursor(text: str) -> Place:
    """Parse the text that `str(place)` returned. Raises BadCursorError."""
    if live := _LIVE.fullmatch(text):
        return Live(int(live[1]), int(live[2]))
    found = _HISTORY.fullmatch(text)
    key = key_of_file(int(found[3]), int(found[4]), found[5]) if found else None
    if found is None or key is None:
        raise BadCursorError("not a cursor of a log record")
    try:
        ts = float.fromhex(found[2])
    except OverflowError:
        raise BadCursorError("its time is out of range") from None
    return History(int(found[1]), ts, key, int(found[6]))


def history(sources: Iterable[Source], boundary: int, after: History | None) -> Iterator[Piece]:
    """Yield what arrived before `boundary`, by time, starting at `after`."""
    found = (_by_time(source, boundary, after) for source in sources)
    with _Files() as files:
        for ts, key, _, source, number, entry in heapq.merge(*found):
            same = after is not None and (ts, key) == (after.ts, after.stream)
            skip = after.offset if after is not None and same else 0
            if entry.gap and skip <= entry.start:
                end = _end_of_gap(source, number)
                why = gap_text(entry.gap, end - entry.start)
                yield Piece(key, entry.start, ts, b"", History(boundary, ts, key, end), why)
            for offset, data in files.read(source, entry, skip):
                place = History(boundary, ts, key, offset + len(data))
                yield Piece(key, offset, ts, data, place)


def live(sources: Iterable[Source], after: Live, until: int) -> Iterator[Piece]:
    """Yield arrivals from `after` up to but without `until`, in order."""
    # Skip streams that have not grown, because each read of an index costs.
    found = (_by_arrival(s, after.seq, until) for s in sources if s.last_seq >= after.seq)
    with _Files() as files:
        for seq, key, source, number, entry in heapq.merge(*found):
            skip = after.offset if seq == after.seq else 0
            if entry.gap and skip <= entry.start:
                end = _end_of_gap(source, number)
                why = gap_text(entry.gap, end - entry.start)
                yield Piece(key, entry.start, entry.ts, b"", Live(seq, end), why)
            for offset, data in files.read(source, entry, skip):
                yield Piece(key, offset, entry.ts, data, Live(seq, offset + len(data)))


def last_lines(sources: Iterable[Source], boundary: int, lines: int) -> Iterator[History | None]:
    """Yield the position in history that `lines` lines follow. Reads back at most 64 MiB.

    Yields None after each slice of the search, so that readers can take turns. Yields no position
    if the history has no more lines than that.
    """
    found = (_by_time(source, boundary, None, backward=True) for source in sources)
    newlines, seen = 0, 0
    records, slice_ends = 0, _SLICE_BYTES
    with _Files() as files:
        for ts, key, _, source, _, entry in heapq.merge(*found, reverse=True):
            records += 1
            if records % _SLICE_RECORDS == 0 or seen >= slice_ends:
                slice_ends = seen + _SLICE_BYTES
                yield None
            for offset, data in reversed(list(files.read(source, entry, 0))):
                # The log's final newline does not begin another line.
                end = len(data) - 1 if seen == 0 and data.endswith(b"\n") else len(data)
                seen += len(data)
                while (at := data.rfind(b"\n", 0, end)) >= 0:
                    newlines += 1
                    if newlines >= lines:
                        yield History(boundary, ts, key, offset + at + 1)
                        return
                    end = at
                if seen >= _TAIL_BYTES_MAX:
                    yield History(boundary, ts, key, offset)
                    return


def take(pieces: Iterator[Piece], bytes_max: int) -> list[Piece]:
    """Return the next pieces, until they hold `bytes_max` bytes or are many: gaps have no bytes.
    Returns [] at the end.
    """
    taken: list[Piece] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece.data)
        if size >= bytes_max or len(taken) >= _SLICE_RECORDS:
            break
    return taken


def _by_time(
    source: Source, boundary: int, after: History | None, *, backward: bool = False
) -> Iterator[tuple[float, StreamKey, int, Source, int, Entry]]:
    with _reading(source):
        index = IndexFile(source.path)
        total = _records(source, index)
        count = index.bisect(total, lambda entry: entry.seq >= boundary)
        first = _first_wanted(source, index, count)
        if after is not None:
            place = (after.ts, after.stream)
            if source.key == after.stream:
                begin = index.bisect(
                    count, lambda e: e.ts > after.ts or (e.ts == after.ts and e.end > after.offset)
                )
            else:
                begin = index.bisect(count, lambda entry: (entry.ts, source.key) > place)
            first = max(first, begin)
        if backward:
            entries = _reversed(source, index, first, count, total)
        else:
            entries = _entries(source, index, first, count, total)
        for number, entry in entries:
            yield entry.ts, source.key, entry.start, source, number, entry


def _by_arrival(
    source: Source, first_seq: int, until: int
) -> Iterator[tuple[int, StreamKey, Source, int, Entry]]:
    with _reading(source):
        index = IndexFile(source.path)
        total = _records(source, index)
        first = index.bisect(total, lambda entry: entry.seq >= first_seq)
        last = index.bisect(total, lambda entry: entry.seq >= until)
        first = max(first, _first_wanted(source, index, last))
        for number, entry in _entries(source, index, first, last, total):
            yield entry.seq, source.key, source, number, entry


@contextlib.contextmanager
def _reading(source: Source) -> Iterator[None]:
    """Raise LogStoreError where the index cannot be read or has become shorter."""
    try:
        yield
    except (OSError, IndexError) as error:
        raise _damaged(source) from error


def _damaged(source: Source) -> LogStoreError:
    return LogStoreError(
        f"{index_path(source.path)} is damaged, or of another stream; the bytes are in "
        f"{source.path}"
    )


def _records(source: Source, index: IndexFile) -> int:
    """Return how many records there are. Raises LogStoreError if they end too early."""
    total = len(index)
    if source.last_seq == 0:
        return total
    last = index.read(total - 1, total)[0]
    if last.seq < source.last_seq or (last.end < source.indexed and not last.gap):
        raise _damaged(source)
    return total


def _entries(
    source: Source, index: IndexFile, first: int, last: int, total: int
) -> Iterator[tuple[int, Entry]]:
    """Yield records `first` to `last`, without `last`, with their numbers. Raises LogStoreError if
    they, or the ones around them, do not follow from each other."""
    begin = max(first - 1, 0)
    before: Entry | None = None
    for number, entry in enumerate(index.forward(begin, min(last + 1, total)), begin):
        _check(source, number, before, entry)
        if first <= number < last:
            yield number, entry
        before = entry


def _reversed(
    source: Source, index: IndexFile, first: int, last: int, total: int
) -> Iterator[tuple[int, Entry]]:
    """Yield the records of `_entries` in reverse order."""
    begin, end = max(first - 1, 0), min(last + 1, total)
    after: Entry | None = None
    for number, entry in zip(
        range(end - 1, begin - 1, -1), index.backward(begin, end), strict=False
    ):
        if after is not None:
            _check(source, number + 1, entry, after)
        if first <= number < last:
            yield number, entry
        after = entry
    if after is not None:
        _check(source, begin, None, after)


def _check(source: Source, number: int, before: Entry | None, entry: Entry) -> None:
    """Raise LogStoreError if a record is not what can follow the one before it."""
    if before is None:
        follows = number > 0 or entry.start == 0
    else:
        follows = (
            (
                entry.start >= before.end and not entry.has_bytes
                if before.gap
                else entry.start == before.end
            )
            and entry.ts >= before.ts
            and entry.seq >= before.seq
        )
    if not follows or (entry.start < source.indexed and entry.seq > source.last_seq):
        raise _damaged(source)


def _first_wanted(source: Source, index: IndexFile, count: int) -> int:
    """Return the first record within the source's own bounds."""
    first = 0
    if source.since > 0:
        first = index.bisect(count, lambda entry: entry.ts >= source.since)
    if source.offset > 0:
        first = max(first, index.bisect(count, lambda entry: entry.end > source.offset))
    return first


def _end_of_gap(source: Source, number: int) -> int:
    """Return the end of the gap that record `number` begins."""
    index = IndexFile(source.path)
    try:
        for following in index.read(number + 1, number + 2):
            return following.start
        return os.stat(source.path, follow_symlinks=False).st_size
    except OSError as error:
        raise LogStoreError(f"{source.path} cannot be read: {error.strerror}") from error


class _Files:
    """Stream files being read. Keeps a few open, because records may be as short as a line."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def read(self, source: Source, entry: Entry, skip_to: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of a record from offset `skip_to` of the stream, in pieces."""
        at = max(entry.start, skip_to, source.offset)
        if at >= entry.end or not entry.has_bytes:
            return
        try:
            fd = self._fd(source.path)
            while at < entry.end:
                data = os.pread(fd, min(PIECE_BYTES, entry.end - at), at)
                if not data:
                    raise LogStoreError(
                        f"{source.path} ends at byte {at}, and its index goes on: it was cut, or "
                        f"{index_path(source.path)} is damaged"
                    )
                if at + len(data) < entry.end:
                    data = data[: len(data) - incomplete_tail(data)]
                yield at, data
                at += len(data)
        except OSError as error:
            raise LogStoreError(f"{source.path} cannot be read: {error.strerror}") from error

    def _fd(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            if len(self._open) > _FILES_OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return fd
