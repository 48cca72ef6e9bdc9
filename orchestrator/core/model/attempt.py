"""The states of an attempt and its transitions.

An attempt follows its tasks: it moves when all of them have moved, or when the first one fails.
"""

from __future__ import annotations

import enum
from typing import Final


class AttemptPhase(enum.Enum):
    PREPARING = "preparing"
    ARRANGING = "arranging"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSED = "closed"


ATTEMPT_TRANSITIONS: Final[dict[AttemptPhase, frozenset[AttemptPhase]]] = {
    AttemptPhase.PREPARING: frozenset({AttemptPhase.ARRANGING, AttemptPhase.STOPPING}),
    AttemptPhase.ARRANGING: frozenset({AttemptPhase.RUNNING, AttemptPhase.STOPPING}),
    AttemptPhase.RUNNING: frozenset({AttemptPhase.STOPPING}),
    AttemptPhase.STOPPING: frozenset({AttemptPhase.CLOSED}),
    AttemptPhase.CLOSED: frozenset(),
}
