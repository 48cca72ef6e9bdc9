"""Rate at which the hardware events of a node are recorded. Times are monotonic seconds.

Kills for lack of memory, which a job can cause, have a rate of their own.
"""

from __future__ import annotations

from typing import Final

HARDWARE_AT_ONCE: Final = 32
HARDWARE_EVERY_S: Final = 60.0
"""So many events of a node are recorded at once, and one more after each such time."""


def hardware_due(due: float, at: float, count: int) -> float:
    """Return the time up to which a node's events use up the rate, after `count` at `at`.

    `due` is that time before (the generic cell rate algorithm).
    """
    return max(due, at) + count * HARDWARE_EVERY_S if count else due


def hardware_room(due: float, at: float) -> int:
    """Return how many events of a node may be recorded at `at`."""
    used = max(0.0, due - at) / HARDWARE_EVERY_S
    return max(0, int(HARDWARE_AT_ONCE - used))
