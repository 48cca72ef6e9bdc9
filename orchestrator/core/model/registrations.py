"""Rates at which registrations, connections and hardware events of a node are recorded. Times are
monotonic seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec

REGISTRATIONS_AT_ONCE: Final = 16
REGISTRATION_EVERY_S: Final = 600.0
"""Number of registrations of one node at once, and the time after which it has one more."""
CONNECTIONS_AT_ONCE: Final = 60
CONNECTION_EVERY_S: Final = 2.0
"""The same for its connections: each records the tasks that it cuts off and brings back."""
HARDWARE_AT_ONCE: Final = 32
HARDWARE_EVERY_S: Final = 60.0
"""The same for its hardware events. Kills for lack of memory, which a job can cause, have a rate of
their own."""
NEW_NODES_WITHIN_S: Final = 3600.0


def registration_due(due: float, at: float) -> float:
    """Return the time up to which a node's registrations use up the rate, after one at `at`.

    `due` is that time before (the generic cell rate algorithm).
    """
    return max(due, at) + REGISTRATION_EVERY_S


def registration_wait_s(due: float, at: float, at_once: int = REGISTRATIONS_AT_ONCE) -> float:
    """Return the seconds from `at` until a node may be registered again, 0 if it may be now."""
    return max(0.0, due - at - (at_once - 1) * REGISTRATION_EVERY_S)


def connection_due(due: float, at: float) -> float:
    """Return the time up to which a node's connections use up their rate, after one at `at`."""
    return max(due, at) + CONNECTION_EVERY_S


def connection_wait_s(due: float, at: float) -> float:
    """Return the seconds from `at` until a node may connect again, 0 if it may now."""
    return max(0.0, due - at - (CONNECTIONS_AT_ONCE - 1) * CONNECTION_EVERY_S)


def hardware_due(due: float, at: float, count: int) -> float:
    """Return the time up to which a node's events use up the rate, after `count` at `at`.

    `due` is that time before (the generic cell rate algorithm).
    """
    return max(due, at) + count * HARDWARE_EVERY_S if count else due


def hardware_room(due: float, at: float) -> int:
    """Return how many events of a node may be recorded at `at`."""
    used = max(0.0, due - at) / HARDWARE_EVERY_S
    return max(0, int(HARDWARE_AT_ONCE - used))


class NewNodes(msgspec.Struct, frozen=True):
    """The nodes with new names, `number` of them since `since`."""

    since: float = 0.0
    number: int = 0

    def counted(self, at: float) -> NewNodes:
        """Return the count as of `at`, which starts again after NEW_NODES_WITHIN_S."""
        return self if at - self.since < NEW_NODES_WITHIN_S else NewNodes(at)


def one_more_new_node(known: NewNodes, at: float) -> NewNodes:
    counted = known.counted(at)
    return NewNodes(counted.since, counted.number + 1)
