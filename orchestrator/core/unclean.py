"""A node on which processes outlive SIGKILL gets no job until somebody has looked at it."""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import BadId, NodeName, parse_task_id
from muster.protocol.messages import TaskReport
from orchestrator.core import facts as f
from orchestrator.core import service_facts as sf
from orchestrator.core.service import ITSELF
from orchestrator.core.state import Node

NAMED: Final = 8


def unclean(node: Node | None, name: NodeName, report: TaskReport) -> list[f.Fact]:
    """The node is drained, with the pids in the reason.

    `node` is None before its first hello is taken. Nobody else's drain is replaced.
    """
    if not report.survivors or (node is not None and not node.in_service):
        return []
    try:
        job = f" of job {parse_task_id(report.task)[0]}"
    except BadId:
        job = ""
    pids = ", ".join(str(pid) for pid in report.survivors[:NAMED])
    more = len(report.survivors) - NAMED
    reason = (
        f"cannot be cleaned: SIGKILL does not end {pids}{f' and {more} more' if more > 0 else ''}"
        f"{job}, which the kernel holds, as it does for a hung disk or GPU driver; "
        "reboot it, then resume it"
    )
    return [sf.NodeDrained(name, ITSELF, reason)]
