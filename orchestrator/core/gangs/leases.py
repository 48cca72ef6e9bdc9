"""How long a node that is cut off may go on with a task, and from when on it can be no more there.

An agent counts a lease from the moment at which it last asked for it, the coordinator from the
moment at which it heard that: later, and by a margin longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.control_channel import LEASES_OF_TASKS
from muster.protocol.ids import TaskId
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Job, Node, State, Task


def own_lease_s(job: Job, limits: Limits) -> float:
    """Never so short that a lost heartbeat ends the job."""
    asked_s = job.spec.lease_s
    return limits.lease_s if asked_s is None else max(asked_s, 3 * limits.heartbeat_s)


def gone_at(state: State, node: Node, task: Task, limits: Limits) -> float:
    """When a task on a silent node has ended there at the latest, in monotonic seconds. An agent
    that knows of no lease but that of all tasks keeps that one."""
    lease_s = own_lease_s(state.jobs[task.job], limits)
    if node.protocol < LEASES_OF_TASKS:
        lease_s = max(lease_s, limits.lease_s)
    return node.lease_until - limits.lease_s + lease_s


def leases_told(state: State, tasks: Iterable[Task], limits: Limits) -> dict[TaskId, float]:
    """Those that are not that of all tasks."""
    found = {task.id: own_lease_s(state.jobs[task.job], limits) for task in tasks}
    return {task: lease_s for task, lease_s in found.items() if lease_s != limits.lease_s}
