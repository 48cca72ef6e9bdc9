"""Rebuild an ended job from its own facts, as the archive has them."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Inventory
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts.jobs import Fact
from orchestrator.core.model.state import Job, Node, State


class _AnyNode(dict[NodeName, Node]):
    """Creates nodes on access, because facts about nodes are not part of a job's history."""

    def __missing__(self, name: NodeName) -> Node:
        node = self[name] = Node(name, "", "", "", Inventory("", ""))
        return node


def replay_job(facts: Iterable[tuple[Fact, float]]) -> Job:
    """Rebuild a job from all of its facts, in order, each with its time of record (UTC seconds).

    The result equals the job in the state, except after a restore: the terms, `member_until` and
    `limit_terms` may differ, which nobody reads of an ended job. In a journal of
    release 0.1, the machine on which an attempt leased a port may be missing. Raises
    InvalidTransition, LookupError or ValueError if the facts are not a job's history.
    """
    state = State(nodes=_AnyNode())
    for fact, at in facts:
        apply(state, fact, at)
    (job,) = state.jobs.values()
    return job
