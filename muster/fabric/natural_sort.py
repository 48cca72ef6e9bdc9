"""Natural sort orders: mlx5_2 before mlx5_10, and PCI functions by their numbers."""

from __future__ import annotations

import functools
import re
from typing import Final

_DIGITS: Final = re.compile(r"([0-9]+)")
_PARTS: Final = re.compile(r"[:.]")


@functools.lru_cache(maxsize=16_384)
def natural(text: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    words = _DIGITS.split(text)
    numbers = [int(word[:18]) for word in words[1::2]] + [-1]
    return tuple(zip(words[::2], numbers, strict=True))


def function_order(function: str) -> tuple[int, ...]:
    """Return a sort key for PCI addresses: by domain, bus, device and function."""
    try:
        return tuple(int(part, 16) for part in _PARTS.split(function))
    except ValueError:
        return ()
