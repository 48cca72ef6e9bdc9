"""Processes that outlive SIGKILL, as the kernel holds them: their node gets no job until somebody
has looked at it, and their job goes on without it.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.control_channel import TaskReport
from muster.protocol.ids import BadId, NodeName, parse_task_id
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.model.state import Node, Task
from orchestrator.core.nodes.service_state import ITSELF

NAMED: Final = 8
TASKS_KEPT: Final = 64


def drain_for_unkillable(node: Node | None, name: NodeName, report: TaskReport) -> list[f.Fact]:
    """The node is drained, with the pids in the reason.

    `node` is None before its first hello is taken. Nobody else's drain is replaced.
    """
    if not report.survivors or (node is not None and not node.in_service):
        return []
    try:
        job = f" of job {parse_task_id(report.task)[0]}"
    except BadId:
        job = ""
    reason = (
        f"unkillable: SIGKILL does not end {_pids(report.survivors)}{job}, "
        "which the kernel holds, as it does for a hung disk or GPU driver; "
        "reboot it, then resume it"
    )
    return [sf.NodeDrained(name, ITSELF, reason)]


def survivor_facts(node: Node | None, name: NodeName, report: TaskReport) -> list[f.Fact]:
    """Whom the kernel holds, where that is news: nobody is to resume the node over them. `node` is
    None, or as a new connection has it, where nothing is known."""
    known = {} if node is None else node.survivors
    if known.get(report.task, ()) == report.survivors:
        return []
    if report.survivors and len(known) >= TASKS_KEPT:
        return []
    return [f.SurvivorsSeen(name, report.task, report.survivors)]


def declare_task_lost(task: Task, report: TaskReport) -> list[f.Fact]:
    """A task that is as good as over: none of its processes will ever run its program again, so
    that its gang waits for nothing. Not one that only resists: it may run on."""
    if not report.survivors or not report.doomed or report.state is TaskState.CLEANED:
        return []
    reason = f"SIGKILL does not end {_pids(report.survivors)} there"
    return [f.TaskLost(task.job, task.attempt, task.rank, reason)]


def survivor_problems(node: Node) -> tuple[str, ...]:
    """What speaks against jobs on a node."""
    return tuple(
        f"SIGKILL has not ended {_pids(pids)} of task {task} yet"
        for task, pids in sorted(node.survivors.items())
    )


def _pids(pids: tuple[int, ...]) -> str:
    more = len(pids) - NAMED
    named = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{named}{f' and {more} more' if more > 0 else ''}"
