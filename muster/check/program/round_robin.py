"""Round-robin schedule: each pair meets once, and no node has two peers at a time."""

from __future__ import annotations

from typing import Optional


def rounds(count: int) -> int:
    """Return the number of rounds in which each of `count` nodes meets every other."""
    return 0 if count < 2 else count - 1 + count % 2


def partner(count: int, number: int, index: int) -> Optional[int]:
    """Return a node's partner in a round (the circle method). Returns None if it pauses.

    All nodes but the last form a circle of odd length: `i` meets `j` if `i + j` is the round's
    number modulo that length. The last node meets the one that would meet itself.
    """
    circle = rounds(count)
    last = circle
    if index == last:
        other = number * ((circle + 1) // 2) % circle
    else:
        other = (number - index) % circle
        if other == index:
            other = last
    return other if other < count else None
