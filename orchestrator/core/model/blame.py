"""Blame: the nodes at fault for the failed attempts of a job."""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.protocol.ids import NodeName
from muster.protocol.outcome import Cause, CauseCode
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core.model.state import Attempt, Job

OF_NOBODY: Final = frozenset(
    {RefusalCode.PORT_TAKEN, RefusalCode.TOO_LARGE, RefusalCode.HOSTS_ELSEWHERE}
)
"""Refusals for which no node is to blame.

HOSTS_ELSEWHERE is one of them. Otherwise a node with the name of another machine would get the
peers that refuse it out of service.
"""


def blame(job: Job) -> Counter[NodeName]:
    """Count, for each node, the attempts of the job in which it was at fault."""
    faults = (guilty_nodes(attempt, attempt.cause) for attempt in job.attempts if attempt.cause)
    return Counter(name for guilty in faults for name in guilty)


def guilty_nodes(attempt: Attempt, cause: Cause) -> frozenset[NodeName]:
    """Return the nodes at fault: lost ones, those that refused, and the one that the cause names.

    Nodes that an elastic gang continued without are not to blame for its end.
    """
    if cause.code is CauseCode.RESTORED:
        return frozenset()
    launcher, *workers = (task.node for task in attempt.tasks)
    if cause.refusal == RefusalCode.UNREACHABLE and cause.node == launcher and len(workers) > 1:
        # No worker reached the launcher. With a single worker, either node may be to blame.
        return frozenset({launcher})
    named = {
        t.node
        for t in attempt.present
        if t.state is TaskState.LOST or (t.refusal is not None and t.refusal.code not in OF_NOBODY)
    }
    if cause.node_fault and cause.node is not None:
        named.add(NodeName(cause.node))
    return frozenset(named)
