"""The members of a gang and their GPU counts."""

from __future__ import annotations

from muster.protocol.messages import Prepared
from muster.spec.types import Seat
from orchestrator.core.state import Attempt, Task


def members_of(attempt: Attempt) -> list[Task]:
    """The prepared tasks of the gang; of an elastic gang that runs, those that are present."""
    return [task for task in attempt.present if task.prepared is not None]


def seat_of(task: Task) -> Seat:
    return Seat(task.rank, task.node, gpus_of(task))


def gpus_of(task: Task) -> int:
    """Those it was given, else all that its node has."""
    return len(task.gpus) or prepared_of(task).gpus


def prepared_of(task: Task) -> Prepared:
    if task.prepared is None:
        raise AssertionError(f"task {task.id} is arranged before it is prepared")
    return task.prepared
