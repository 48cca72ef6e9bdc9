"""Message sizes as in nccl-tests: K, M and G are powers of 1024."""

from __future__ import annotations

import re
from typing import Final

ELEMENT_BYTES: Final = 4
"""Sizes are multiples of this, because the program reduces 32-bit floats."""
SIZE_MAX: Final = 1 << 40
_SIZE: Final = re.compile(r"([0-9]{1,15})([KMGkmg]?)(?:i?[Bb])?")
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30}
_EXAMPLE: Final = "write 1M..1G, which doubles from the one to the other, or 1M,64M,1G"


class SizesError(ValueError):
    """The text is not a list of sizes. The message says what to write."""


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse `1M..1G` or `1M,64M` to sizes in bytes, unique and ascending. Raises SizesError."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        low = _bytes(first)
        high = _bytes(last) if dots else low
        if high < low:
            raise SizesError(f"{part.strip()!r} goes down; write the smaller size first")
        while low <= high:
            sizes.add(low)
            low *= 2
        sizes.add(high)
    return tuple(sorted(sizes))


def size_text(size: int) -> str:
    """Format a size as `64M`, in the largest unit that divides it, else in bytes."""
    for unit in ("G", "M", "K"):
        if size % (1 << _UNITS[unit]) == 0:
            return f"{size >> _UNITS[unit]}{unit}"
    return str(size)


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SizesError(f"{text.strip()!r} is no size; {_EXAMPLE}")
    size = int(found[1]) << _UNITS[found[2].upper()]
    if size > SIZE_MAX:
        raise SizesError(f"{text.strip()!r} is more than {size_text(SIZE_MAX)} bytes")
    if size == 0 or size % ELEMENT_BYTES:
        raise SizesError(f"{text.strip()!r} is no multiple of {ELEMENT_BYTES} bytes, one float")
    return size
