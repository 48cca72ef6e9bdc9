"""A job that has ended, as it was, from its own facts: the way back out of the archive."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.control_channel import Inventory
from muster.protocol.ids import NodeName
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts.jobs import Durable
from orchestrator.core.model.state import Job, Node, State


class _AnyNode(dict[NodeName, Node]):
    """What nodes have is no part of a job's history: each that is named is there."""

    def __missing__(self, name: NodeName) -> Node:
        node = self[name] = Node(name, "", "", "", Inventory("", ""))
        return node


def replay_job(facts: Iterable[tuple[Durable, float]]) -> Job:
    """The job of which these are all facts, in order, each with when it was recorded (UTC seconds).

    But for the machine on which its attempts leased a port, it is as the state had it. Raises
    InvalidTransition, LookupError and ValueError for what is no history of a job.
    """
    state = State(nodes=_AnyNode())
    for fact, at in facts:
        apply(state, fact, at)
    (job,) = state.jobs.values()
    return job
