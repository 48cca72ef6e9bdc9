"""Whose logs are still to come."""

from __future__ import annotations

from collections.abc import Container

from orchestrator.core.state import Job, Task


def awaited(job: Job, stored: Container[tuple[int, int]]) -> list[Task]:
    """The tasks whose logs are not all here; `stored` has attempt and rank of those that are.

    Before its node has said that it is prepared, nothing of a task has run but the job's `setup`:
    without one there is nothing to deliver, though the node may have refused it and died since.
    """
    return [
        task
        for attempt in job.attempts
        for task in attempt.tasks
        if task.leaves_log
        and (task.prepared is not None or job.spec.setup is not None)
        and (attempt.number, task.rank) not in stored
    ]
