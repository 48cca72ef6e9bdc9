"""The states of a job and its transitions."""

from __future__ import annotations

import enum
from typing import Final


class JobPhase(enum.Enum):
    """HELD: the job waits, and must not be placed until a user releases it."""

    QUEUED = "queued"
    HELD = "held"
    ACTIVE = "active"
    BACKOFF = "backoff"
    ENDED = "ended"


JOB_TRANSITIONS: Final[dict[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.QUEUED: frozenset({JobPhase.ACTIVE, JobPhase.HELD, JobPhase.ENDED}),
    JobPhase.HELD: frozenset({JobPhase.QUEUED, JobPhase.ENDED}),
    JobPhase.ACTIVE: frozenset({JobPhase.BACKOFF, JobPhase.ENDED}),
    JobPhase.BACKOFF: frozenset({JobPhase.QUEUED, JobPhase.HELD, JobPhase.ENDED}),
    JobPhase.ENDED: frozenset(),
}
