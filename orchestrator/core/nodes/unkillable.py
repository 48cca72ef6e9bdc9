"""Processes that survive SIGKILL, because the kernel holds them.

Their node gets no jobs until an operator has resumed it, and their job continues without it. A
program can cause them on purpose, as with a FUSE file system of its own. So the jobs of one user
take few nodes out of service this way, and a job that has done it on several is not retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from muster.protocol.ids import BadId, JobId, NodeName, parse_task_id
from muster.protocol.link.control_channel import Hello, TaskReport
from muster.protocol.states import TaskState
from muster.protocol.text import named
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import service as sf
from orchestrator.core.failures.stops import lost
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Job, Node, State, Task

NAMED: Final = 8
TASKS_KEPT: Final = 64
PIDS_KEPT: Final = 64
"""Tasks of a node, and processes of each, that are kept: a node's hello alone may name millions."""
NODES_MAX: Final = 2
"""Nodes that the jobs of one user may take out of service at one time by such processes, and on
which one job may leave some before it is not retried any more."""


def drain_for_unkillable(
    state: State, node: Node | None, name: NodeName, task: Task | None, report: TaskReport
) -> list[f.Fact]:
    """Drain the node, with the pids in the reason, unless NODES_MAX are for jobs of the same user.

    `node` is None before its first hello is applied. `task` is None if the journal lacks it, and
    then the drain counts for no user. An existing drain is not replaced.
    """
    if not report.survivors or (node is not None and not node.in_service):
        return []
    try:
        job: JobId | None = parse_task_id(report.task)[0]
    except BadId:
        job = None
    owner = None if task is None else state.jobs[task.job]
    left_by = None if owner is None else (owner.id, owner.user)
    if owner is not None and _drained_for(state, owner.user) >= NODES_MAX:
        return []
    whose = "" if job is None else f" of job {job}"
    reason = (
        f"unkillable: SIGKILL does not end {_pids(report.survivors)}{whose}, "
        "which the kernel holds, as for a hung disk or GPU driver; "
        "reboot it, then resume it"
    )
    return [sf.NodeDrained(name, ITSELF, reason, left_by=left_by)]


def _drained_for(state: State, user: str) -> int:
    drains = [node.drain for node in state.nodes.values() if node.drain is not None]
    return sum(drain.left_by is not None and drain.left_by[1] == user for drain in drains)


def not_retried(state: State, job: Job, after: f.JobEnded | f.RetryScheduled) -> f.JobEnded | None:
    """End a job that has left such processes on several nodes, in place of a retry.

    A retry that is free, such as after a drain, is granted.
    """
    if isinstance(after, f.JobEnded) or after.budget == "free":
        return None
    nodes = _nodes_with_survivors(state, job)
    cause = job.attempts[-1].cause
    if cause is None or len(nodes) < NODES_MAX:
        return None
    why = f"SIGKILL does not end its processes on {named(nodes)}"
    return f.JobEnded(job.id, replace(cause, text=f"{cause.text}; not retried, {why}"))


def _nodes_with_survivors(state: State, job: Job) -> list[NodeName]:
    """Return the nodes on which processes of the job survive SIGKILL, or for which it was drained.

    The second holds until an operator resumes the node.
    """
    tasks = {(task.node, task.id) for attempt in job.attempts for task in attempt.tasks}
    return [
        node.name
        for node in state.nodes.values()
        if any((node.name, task) in tasks for task in node.survivors)
        or (
            node.drain is not None
            and node.drain.left_by is not None
            and node.drain.left_by[0] == job.id
        )
    ]


def survivor_facts(node: Node, report: TaskReport) -> list[f.Fact]:
    """Return the surviving processes if they have changed. They block a resume of the node."""
    known, pids = node.survivors, report.survivors[:PIDS_KEPT]
    if known.get(report.task, ()) == pids:
        return []
    if report.task not in known and len(known) >= TASKS_KEPT:
        return []
    return [lf.SurvivorsReported(node.name, report.task, pids)]


def connected_with_survivors(
    state: State, node: Node | None, hello: Hello, reports: Iterable[TaskReport]
) -> list[f.Fact]:
    """Return the surviving processes that a node has when it connects, and its drain for them.

    `node` is None before its first hello. The reports are those of its own tasks, and of tasks that
    the journal lacks.
    """
    # First the tasks that the journal has, so that made-up ones displace none of these.
    held = sorted(
        (report for report in reports if report.survivors),
        key=lambda report: state.find_task(report.task) is None,
    )[:TASKS_KEPT]
    found: list[f.Fact] = [
        lf.SurvivorsReported(hello.node, report.task, report.survivors[:PIDS_KEPT])
        for report in held
    ]
    for report in held:
        task = state.find_task(report.task)
        if drained := drain_for_unkillable(state, node, hello.node, task, report):
            return [*found, *drained]
    return found


def declare_task_lost(task: Task, report: TaskReport) -> list[f.Fact]:
    """Declare a task lost if none of its processes will ever run its program again.

    Its gang would wait for nothing. A task that only resists SIGKILL may still run, and is not
    lost. If no process is left at all, the node cannot write the task's exit record.
    """
    if not report.doomed or report.state is TaskState.CLEANED:
        return []
    reason = "the exit record of the task cannot be written on its disk"
    if report.survivors:
        reason = f"SIGKILL does not end {_pids(report.survivors)} there"
    return [lost(task, reason, TaskProof.REPORTED)]


def survivor_problems(node: Node) -> tuple[str, ...]:
    """Return the surviving processes as problems: warnings, which also block a resume."""
    return tuple(
        f"SIGKILL has not ended {_pids(pids)} of task {task} yet"
        for task, pids in sorted(node.survivors.items())
    )


def _pids(pids: tuple[int, ...]) -> str:
    more = len(pids) - NAMED
    first = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{first}{f' and {more} more' if more > 0 else ''}"
