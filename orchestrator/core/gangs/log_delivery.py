"""Tasks whose logs are still to be delivered."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core.model.state import Job, Task

_BEFORE_A_SHIM: Final = frozenset(
    {
        RefusalCode.GPU_BUSY,
        RefusalCode.GPU_GONE,
        RefusalCode.GPU_DIRTY,
        RefusalCode.PREFLIGHT_FAILED,
        RefusalCode.PROLOG_FAILED,
        RefusalCode.SPAWN_FAILED,
        RefusalCode.NO_SPACE,
        RefusalCode.NO_PORTS,
        RefusalCode.NO_DESCRIPTORS,
        RefusalCode.NO_CODE,
        RefusalCode.USER_REFUSED,
        # Or while the gang is arranged, when the task is prepared.
        RefusalCode.NOT_FENCED,
    }
)
"""Refusals by an agent itself, before any process of the job ran.

After a restart the agent does not know such a task, so it never reports the end of the log.
"""


def tasks_with_pending_logs(job: Job, stored: Container[tuple[int, int]]) -> list[Task]:
    """Tasks whose logs are incomplete; `stored` has (attempt, rank) of the complete ones."""
    return [
        task
        for attempt in job.attempts
        for task in attempt.tasks
        if (attempt.number, task.rank) not in stored and _may_have_log(job, task)
    ]


def _may_have_log(job: Job, task: Task) -> bool:
    """True if the task may have written a log that the node can still deliver.

    Not if the node is lost, never had the task (a cancel came first) or reported no output. Before
    a task is prepared, only the job's `setup` has run, or git.
    """
    if task.no_output:
        return False
    if task.state is not TaskState.CLEANED or task.prepared or task.exit:
        return task.state is not TaskState.LOST
    if (job.spec.setup is None and job.spec.git is None) or task.refusal is None:
        return False
    return task.refusal.code not in _BEFORE_A_SHIM
