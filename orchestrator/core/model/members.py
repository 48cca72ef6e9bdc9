"""The members of a gang and their GPU counts."""

from __future__ import annotations

from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.link.control_channel import Prepared
from muster.protocol.link.log_channel import STREAMS_PER_TASK_MAX, streams_max
from muster.spec.model import Seat, ranks_on_node
from muster.spec.roles import MAX_NPROC
from orchestrator.core.model.state import Attempt, State, Task


def gang_members(attempt: Attempt) -> list[Task]:
    """The prepared tasks of the gang; of an elastic gang that runs, those that are present."""
    return [task for task in attempt.present if task.prepared is not None]


def seat(task: Task) -> Seat:
    return Seat(task.rank, task.node, gpus_of(task))


def gpus_of(task: Task) -> int:
    """The number of GPUs given to the task, else of all GPUs of its node.

    The number is the agent's and sizes loops, so that it is bounded here as well: a journal may
    hold one from before admission refused it.
    """
    return len(task.gpus) or min(max(require_prepared(task).gpus, 0), MAX_NPROC)


def streams_of(state: State, name: TaskId) -> int:
    """Return how many log streams a task may have by its plan. Raises BadId.

    An elastic gang renumbers its ranks when its nodes change, and each number has its own streams.
    """
    task, job = state.task(name), state.jobs.get(parse_task_id(name)[0])
    if job is None or task is None or task.prepared is None:
        return STREAMS_PER_TASK_MAX
    gangs = job.spec.most_nodes if job.spec.elastic else 1
    return streams_max(ranks_on_node(job.spec, seat(task)) * gangs)


def require_prepared(task: Task) -> Prepared:
    if task.prepared is None:
        raise AssertionError(f"task {task.id} is arranged before it is prepared")
    return task.prepared
