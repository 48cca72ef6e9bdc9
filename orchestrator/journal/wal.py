"""Verification of the frames in SQLite's write-ahead log.

SQLite silently stops reading at the first damaged frame, which loses acknowledged transactions
behind it. https://sqlite.org/fileformat2.html, section 4.
"""

import struct
import sys
from array import array
from dataclasses import dataclass
from typing import BinaryIO, Final

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682  # the last bit: checksums use big-endian words
_VERSION: Final = 3007000
_WORD: Final = 0xFFFFFFFF
_PAGE_SIZES: Final = frozenset(1 << power for power in range(9, 17))

_Sum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WriteAheadLog:
    """Result of examining a log.

    `salt` is the first half of the salt of all frames; each restart of the log increments it. None
    means that the log has no header. `bad` is the first frame (from 1; 0 is the header) that is not
    as it was written. `damaged` means that a later transaction was written after the one of `bad`
    was synced, so `bad` is no interrupted write. `ends` counts the transactions from `bad` on whose
    last frame exists.
    """

    salt: int | None = None
    bad: int | None = None
    damaged: bool = False
    ends: int = 0


def examine_log(file: BinaryIO) -> WriteAheadLog:
    """Examine a whole log, from the beginning of the file.

    A transaction is written only after the one before it was synced. A power failure keeps any part
    of the last one, possibly its end without its beginning. A frame behind a whole transaction
    proves that this transaction was on disk.
    """
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or _is_blank(head, file):
        return WriteAheadLog()
    magic, version, page_bytes, _, *salts, first, second = _HEADER.unpack(head)
    big = bool(magic & 1)
    last = (first, second)
    if (
        magic & ~1 != _MAGIC
        or version != _VERSION
        or page_bytes not in _PAGE_SIZES
        or _checksum((0, 0), head[:24], big=big) != last
    ):
        return WriteAheadLog(bad=0, damaged=True)
    number = ends = 0
    bad: int | None = None
    while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        number += 1
        _, pages, *its_salts, first, second = _FRAME.unpack_from(frame)
        before, last = last, (first, second)
        current = its_salts == salts
        if current:
            between = _checksum(before, frame[:8], big=big)
            sound = _checksum(between, frame[_FRAME.size :], big=big) == last
        else:
            sound = False  # most likely a frame from before the log was restarted
        if bad is None and not sound:
            bad = number
        elif ends and sound:
            return WriteAheadLog(
                salts[0], bad, damaged=True, ends=ends + _count_ends(file, page_bytes, salts)
            )
        if bad is not None and current and pages:
            ends += 1
    return WriteAheadLog(salts[0], bad if ends else None, ends=ends)


def salt_of(head: bytes) -> int:
    """Return the salt in the header of a log, or 0."""
    return int.from_bytes(head[16:20], "big") if len(head) == _HEADER.size else 0


def _count_ends(file: BinaryIO, page_bytes: int, salts: list[int]) -> int:
    file.seek(-(_FRAME.size + page_bytes), 1)
    ends = 0
    while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        _, pages, *its_salts, _, _ = _FRAME.unpack_from(frame)
        ends += bool(pages) and its_salts == salts
    return ends


def _is_blank(head: bytes, file: BinaryIO) -> bool:
    """True if the file contains only zeros: its size reached the disk and its data did not."""
    while not any(head):
        head = file.read(1 << 20)
        if not head:
            return True
    file.seek(_HEADER.size)
    return False


def _checksum(start: _Sum, data: bytes, *, big: bool) -> _Sum:
    words = array("I", data)
    if big != (sys.byteorder == "big"):
        words.byteswap()
    first, second = start
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second
