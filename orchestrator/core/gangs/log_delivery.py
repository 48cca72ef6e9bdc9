"""Whose logs are still to come."""

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
        RefusalCode.SPAWN_FAILED,
        RefusalCode.NO_SPACE,
        RefusalCode.NO_PORTS,
        RefusalCode.NO_DESCRIPTORS,
    }
)
"""Refusals by an agent itself, before anything of the job ran: its next life knows nothing of the
task, and so has no end of its log to tell."""


def tasks_with_pending_logs(job: Job, stored: Container[tuple[int, int]]) -> list[Task]:
    """The tasks whose logs are not all here; `stored` has attempt and rank of those that are."""
    return [
        task
        for attempt in job.attempts
        for task in attempt.tasks
        if (attempt.number, task.rank) not in stored and _may_have_log(job, task)
    ]


def _may_have_log(job: Job, task: Task) -> bool:
    """Not the node that is lost, nor one that never had the task: a cancel may have come first. Nor
    one that said with the end that nothing was written.

    Before it has said that it is prepared, nothing of a task has run but the job's `setup`.
    """
    if task.no_output:
        return False
    if task.state is not TaskState.CLEANED or task.prepared or task.exit:
        return task.state is not TaskState.LOST
    if job.spec.setup is None or task.refusal is None:
        return False
    return task.refusal.code not in _BEFORE_A_SHIM
