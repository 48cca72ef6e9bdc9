"""Many streams as one: history in the order of time, what comes live in the order of arrival.

A reader begins by noting how many arrivals there have been (the boundary). Those before it are its
history, merged by the time at which an agent read them; those after it follow as they arrived. A
cursor is a place in that order, boundary included, so that a reader who comes back with it misses
nothing and sees nothing twice, however much has arrived meanwhile.

Everything here reads files: call it from a thread.
"""

import heapq
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from orchestrator.shell.logs.index import Entry, IndexFile, incomplete_tail
from orchestrator.shell.logs.stream import LogStoreError, StreamKey, key_of_file

PIECE_BYTES: Final = 64 * 1024
_TAIL_BYTES_MAX: Final = 64 << 20
_HISTORY: Final = re.compile(
    r"h([0-9]{1,18})\.(-?0x[01]\.[0-9a-f]{1,13}p-?[0-9]{1,4})\.([0-9]{1,9})\.([0-9]{1,9})"
    r"\.([a-z]+(?:\.[0-9]{1,9})?)\.([0-9]{1,18})"
)
_LIVE: Final = re.compile(r"l([0-9]{1,18})\.([0-9]{1,18})")


class BadCursorError(ValueError):
    """A text that is no cursor of a log."""


@dataclass(frozen=True, slots=True)
class History:
    """Within what had arrived before `boundary`: after byte `offset` of `stream`, read at `ts`."""

    boundary: int
    ts: float
    stream: StreamKey
    offset: int

    def __str__(self) -> str:
        key = self.stream
        where = f"{key.attempt}.{key.node_rank}.{key.file_name}"
        # Without the plus, which a query string reads as a space.
        return f"h{self.boundary}.{self.ts.hex().replace('+', '')}.{where}.{self.offset}"


@dataclass(frozen=True, slots=True)
class Live:
    """After byte `offset` of the stream to which arrival `seq` belongs."""

    seq: int
    offset: int

    def __str__(self) -> str:
        return f"l{self.seq}.{self.offset}"


Place = History | Live


class Source(NamedTuple):
    key: StreamKey
    path: Path


class Piece(NamedTuple):
    """Bytes of one stream from `offset`, and the place right after them."""

    key: StreamKey
    offset: int
    ts: float
    data: bytes
    place: Place


def parse_cursor(text: str) -> Place:
    """The place that `str(place)` named. Raises BadCursorError."""
    if live := _LIVE.fullmatch(text):
        return Live(int(live[1]), int(live[2]))
    found = _HISTORY.fullmatch(text)
    key = key_of_file(int(found[3]), int(found[4]), found[5]) if found else None
    if found is None or key is None:
        raise BadCursorError("not a cursor that a log record carried")
    return History(int(found[1]), float.fromhex(found[2]), key, int(found[6]))


def history(sources: Iterable[Source], boundary: int, after: History | None) -> Iterator[Piece]:
    """What arrived before `boundary`, by time, from `after` on."""
    found = (_by_time(source, boundary, after) for source in sources)
    for ts, key, _, path, entry in heapq.merge(*found):
        skip = after.offset if after is not None and (ts, key) == (after.ts, after.stream) else 0
        for offset, data in _read(path, entry, skip):
            yield Piece(key, offset, ts, data, History(boundary, ts, key, offset + len(data)))


def live(sources: Iterable[Source], after: Live, until: int) -> Iterator[Piece]:
    """What arrived from `after` on and before arrival `until`, in that order."""
    found = (_by_arrival(source, after.seq, until) for source in sources)
    for seq, key, path, entry in heapq.merge(*found):
        for offset, data in _read(path, entry, after.offset if seq == after.seq else 0):
            yield Piece(key, offset, entry.ts, data, Live(seq, offset + len(data)))


def last_lines(sources: Iterable[Source], boundary: int, lines: int) -> History | None:
    """The place in history that has `lines` lines after it; None where that is all of it.

    It looks back at most 64 MiB.
    """
    found = (_by_time(source, boundary, None, backward=True) for source in sources)
    merged = heapq.merge(*found, reverse=True)
    newlines, seen = 0, 0
    for ts, key, _, path, entry in merged:
        for offset, data in reversed(list(_read(path, entry, 0))):
            # The newline that ends the log's last line begins no further one.
            end = len(data) - 1 if seen == 0 and data.endswith(b"\n") else len(data)
            seen += len(data)
            while (at := data.rfind(b"\n", 0, end)) >= 0:
                newlines += 1
                if newlines >= lines:
                    return History(boundary, ts, key, offset + at + 1)
                end = at
            if seen >= _TAIL_BYTES_MAX:
                return History(boundary, ts, key, offset)
    return None


def take(pieces: Iterator[Piece], bytes_max: int) -> list[Piece]:
    """The next pieces, of at least `bytes_max` bytes together unless they end; empty at the end."""
    taken: list[Piece] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece.data)
        if size >= bytes_max:
            break
    return taken


def _by_time(
    source: Source, boundary: int, after: History | None, *, backward: bool = False
) -> Iterator[tuple[float, StreamKey, int, Path, Entry]]:
    index = IndexFile(source.path)
    count = index.bisect(len(index), lambda entry: entry.seq >= boundary)
    first = 0
    if after is not None:
        place = (after.ts, after.stream)
        if source.key == after.stream:
            first = index.bisect(
                count, lambda e: e.ts > after.ts or (e.ts == after.ts and e.end > after.offset)
            )
        else:
            first = index.bisect(count, lambda entry: (entry.ts, source.key) > place)
    entries = index.backward(first, count) if backward else index.forward(first, count)
    return ((e.ts, source.key, e.start, source.path, e) for e in entries)


def _by_arrival(
    source: Source, first_seq: int, until: int
) -> Iterator[tuple[int, StreamKey, Path, Entry]]:
    index = IndexFile(source.path)
    count = len(index)
    first = index.bisect(count, lambda entry: entry.seq >= first_seq)
    last = index.bisect(count, lambda entry: entry.seq >= until)
    return ((e.seq, source.key, source.path, e) for e in index.forward(first, last))


def _read(path: Path, entry: Entry, skip_to: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a record from offset `skip_to` of the stream, in pieces."""
    at = max(entry.start, skip_to)
    if at >= entry.end:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while at < entry.end:
                data = os.pread(fd, min(PIECE_BYTES, entry.end - at), at)
                if not data:
                    return
                if at + len(data) < entry.end:
                    data = data[: len(data) - incomplete_tail(data)]
                yield at, data
                at += len(data)
        finally:
            os.close(fd)
    except OSError as error:
        raise LogStoreError(f"{path} cannot be read: {error.strerror}") from error
