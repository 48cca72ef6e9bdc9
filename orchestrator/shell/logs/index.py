"""The index of a stream: when its bytes arrived, as fixed-size records in a file.

A record is (start, length, ts, seq): bytes of the stream from `start`, read by the agent at `ts`
(UTC seconds, never less than in the record before), the `seq`-th arrival of the whole job. `ts`
orders history and `seq` live output; both locate a cursor. Records tile the stream and never cut a
UTF-8 character. A record of length 0 marks the end of the stream.

If the highest bit of a length is set, the record begins a gap: bytes that count in the offsets but
were never stored. The other bits give the reason (`Gap`). The gap reaches to the start of the next
record, or to the end of the stream. If bytes follow a gap, a closing record with reason 0 precedes
them.
"""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

SUFFIX: Final = ".idx"
_RECORD: Final = struct.Struct(">QIdQ")
RECORD_BYTES: Final = _RECORD.size
_BLOCK_RECORDS: Final = 512
LENGTH_MAX: Final = 1 << 20
_GAP: Final = 1 << 31
CLOSES_GAP: Final = _GAP


class Entry(NamedTuple):
    start: int
    length: int
    ts: float
    seq: int

    @property
    def end(self) -> int:
        """End of the bytes. For a gap, whose length is unknown here, the end of its first byte."""
        if self.length < _GAP:
            return self.start + self.length
        return self.start + (self.gap > 0)

    @property
    def gap(self) -> int:
        """Reason of the gap that begins here, or 0."""
        return self.length & ~_GAP if self.length >= _GAP else 0

    @property
    def has_bytes(self) -> bool:
        return 0 < self.length < _GAP


def gap_entry(start: int, reason: int, ts: float, seq: int) -> Entry:
    return Entry(start, _GAP | reason, ts, seq)


def pack(entry: Entry) -> bytes:
    return _RECORD.pack(*entry)


def index_path(data: Path) -> Path:
    return data.with_name(data.name + SUFFIX)


def read_all(raw: bytes) -> list[Entry]:
    """Return the records in `raw`, without an incomplete last one."""
    whole = len(raw) - len(raw) % RECORD_BYTES
    return [Entry(*fields) for fields in _RECORD.iter_unpack(raw[:whole])]


class IndexFile:
    """Reader of a stream's index. Opens the file for each block, so that many can be in use."""

    def __init__(self, data: Path) -> None:
        self.path = index_path(data)

    def __len__(self) -> int:
        try:
            return os.stat(self.path).st_size // RECORD_BYTES
        except FileNotFoundError:
            return 0

    def read(self, first: int, last: int) -> list[Entry]:
        """Return records `first` to `last`, without `last`."""
        if last <= first:
            return []
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return read_all(os.pread(fd, (last - first) * RECORD_BYTES, first * RECORD_BYTES))
        finally:
            os.close(fd)

    def bisect(self, count: int, key: Callable[[Entry], bool]) -> int:
        """Return the first of `count` records for which `key`, which is monotonic, is true."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if key(self.read(middle, middle + 1)[0]):
                high = middle
            else:
                low = middle + 1
        return low

    def forward(self, first: int, last: int) -> Iterator[Entry]:
        for block in range(first, last, _BLOCK_RECORDS):
            yield from self.read(block, min(block + _BLOCK_RECORDS, last))

    def backward(self, first: int, last: int) -> Iterator[Entry]:
        """Yield the same records in reverse order."""
        for end in range(last, first, -_BLOCK_RECORDS):
            yield from reversed(self.read(max(first, end - _BLOCK_RECORDS), end))


def incomplete_tail(data: bytes) -> int:
    """Return how many bytes (0 to 3) at the end begin an incomplete UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = (
            2
            if 0xC2 <= byte < 0xE0
            else 3
            if 0xE0 <= byte < 0xF0
            else 4
            if 0xF0 <= byte < 0xF5
            else 1
        )
        return back if needed > back else 0
    return 0
