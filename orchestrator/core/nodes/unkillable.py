"""Processes that survive SIGKILL, because the kernel holds them.

Their node gets no jobs until an operator has resumed it, and their job continues without it.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import BadId, NodeName, parse_task_id
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import service as sf
from orchestrator.core.failures.stops import lost
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Node, Task
from orchestrator.core.nodes.service_state import ITSELF

NAMED: Final = 8
TASKS_KEPT: Final = 64


def drain_for_unkillable(node: Node | None, name: NodeName, report: TaskReport) -> list[f.Fact]:
    """Drain the node, with the pids in the reason.

    `node` is None before its first hello is applied. An existing drain is not replaced.
    """
    if not report.survivors or (node is not None and not node.in_service):
        return []
    try:
        job = f" of job {parse_task_id(report.task)[0]}"
    except BadId:
        job = ""
    reason = (
        f"unkillable: SIGKILL does not end {_pids(report.survivors)}{job}, "
        "which the kernel holds, as for a hung disk or GPU driver; "
        "reboot it, then resume it"
    )
    return [sf.NodeDrained(name, ITSELF, reason)]


def survivor_facts(node: Node | None, name: NodeName, report: TaskReport) -> list[f.Fact]:
    """Return the surviving processes if they have changed. They block a resume of the node.

    `node` is None on a new connection, about which nothing is known.
    """
    known = {} if node is None else node.survivors
    if known.get(report.task, ()) == report.survivors:
        return []
    if report.survivors and len(known) >= TASKS_KEPT:
        return []
    return [lf.SurvivorsReported(name, report.task, report.survivors)]


def declare_task_lost(task: Task, report: TaskReport) -> list[f.Fact]:
    """Declare a task lost if none of its processes will ever run its program again.

    Its gang would wait for nothing. A task that only resists SIGKILL may still run, and is not
    lost.
    """
    if not report.survivors or not report.doomed or report.state is TaskState.CLEANED:
        return []
    reason = f"SIGKILL does not end {_pids(report.survivors)} there"
    return [lost(task, reason, TaskProof.REPORTED)]


def survivor_problems(node: Node) -> tuple[str, ...]:
    """Return the surviving processes as problems that block a resume."""
    return tuple(
        f"SIGKILL has not ended {_pids(pids)} of task {task} yet"
        for task, pids in sorted(node.survivors.items())
    )


def _pids(pids: tuple[int, ...]) -> str:
    more = len(pids) - NAMED
    named = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{named}{f' and {more} more' if more > 0 else ''}"
