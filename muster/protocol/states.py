"""States used by both daemons and by users.

The transition tables are in the modules that own them (`orchestrator.core`, `agent.core`).
"""

from __future__ import annotations

import enum


class TaskState(enum.Enum):
    """State of a node's part of an attempt."""

    ASSIGNED = "assigned"
    PREPARED = "prepared"
    ARRANGED = "arranged"
    STARTED = "started"
    EXITED = "exited"
    CLEANED = "cleaned"
    LOST = "lost"


class JobState(enum.Enum):
    """State shown to users, derived by one function of the coordinator from job, attempt and
    outcome.
    """

    QUEUED = "QUEUED"
    HELD = "HELD"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RETRYING = "RETRYING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    LOST = "LOST"


ENDED_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.LOST}
)
