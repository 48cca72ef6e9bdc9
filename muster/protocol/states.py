"""The states both daemons and their users speak of.

The transition tables stand with the machines that own them (`orchestrator.core`, `agent.core`).
"""

from __future__ import annotations

import enum


class TaskState(enum.Enum):
    """One node's part of an attempt."""

    ASSIGNED = "assigned"
    PREPARED = "prepared"
    ARRANGED = "arranged"
    STARTED = "started"
    EXITED = "exited"
    CLEANED = "cleaned"
    LOST = "lost"


class JobState(enum.Enum):
    """What a user sees; derived, in one function of the coordinator, from job, attempt and
    outcome."""

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
