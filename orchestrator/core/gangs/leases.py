"""Leases of tasks: how long a cut-off node may continue a task, and when it has surely ended there.

An agent counts a lease from its last request, the coordinator from receipt of that request. So the
coordinator's lease ends later, and it adds a margin.
"""

from __future__ import annotations

from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Job, Node, State, Task


def own_lease_s(job: Job, limits: Limits) -> float:
    """The lease of the job's tasks in seconds.

    At least three heartbeats, so that a lost heartbeat does not end the job.
    """
    asked_s = job.spec.lease_s
    return limits.lease_s if asked_s is None else max(asked_s, 3 * limits.heartbeat_s)


def gone_at(state: State, node: Node, task: Task, limits: Limits) -> float:
    """The latest time at which a task has ended on a silent node, in monotonic seconds."""
    return node.lease_until - limits.lease_s + own_lease_s(state.jobs[task.job], limits)
