"""Who meets whom, and when: each pair once, nobody two at a time."""

from __future__ import annotations

from typing import Optional


def rounds(count: int) -> int:
    """How many rounds `count` nodes take until each has met each other."""
    return 0 if count < 2 else count - 1 + count % 2


def partner(count: int, number: int, index: int) -> Optional[int]:
    """Whom a node meets in a round (the circle method); None where it has a pause.

    All but the last sit on a circle of odd length: `i` meets `j` where `i + j` is the round's
    number, and the last one meets whoever would meet itself.
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
