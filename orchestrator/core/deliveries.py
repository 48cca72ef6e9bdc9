"""Whose logs are still to come."""

from __future__ import annotations

from collections.abc import Container

from muster.protocol.states import TaskState
from orchestrator.core.state import Job, Task


def awaited(job: Job, stored: Container[tuple[int, int]]) -> list[Task]:
    """The tasks whose logs are not all here; `stored` has attempt and rank of those that are.

    A node that is lost delivers nothing any more. Before its node has said that it is prepared,
    nothing of a task has run but the job's `setup`: without one there is nothing to deliver, and a
    node that was told of its end before it was told of the task has never had it.
    """
    return [
        task
        for attempt in job.attempts
        for task in attempt.tasks
        if task.state is not TaskState.LOST
        and (task.prepared is not None or job.spec.setup is not None)
        and (attempt.number, task.rank) not in stored
    ]
