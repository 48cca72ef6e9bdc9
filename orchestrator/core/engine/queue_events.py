"""Events that may move the promised starts of waiting jobs, from the facts of a turn."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import restored as rf
from orchestrator.core.facts import service as sf
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.plan import MoveCause, QueueEvent
from orchestrator.core.model.state import State


def queue_events(state: State, facts: Iterable[f.Fact]) -> list[QueueEvent]:
    """The events, if jobs wait; the cause of each is the one that users read."""
    if not any(state.queues.values()):
        return []
    return [event for fact in facts for event in _events(fact)]


def _events(fact: f.Fact) -> list[QueueEvent]:
    if isinstance(fact, f.JobChanged):
        longer = fact.time_limit_s is not UNSET
        # A new priority moves the job within its queue.
        moved = not longer or fact.priority is not UNSET
        causes = [MoveCause.SET] * moved + [MoveCause.LIMIT] * longer
        return [QueueEvent(cause, job=fact.job) for cause in causes]
    event = _event(fact)
    return [] if event is None else [event]


def _event(fact: f.Fact) -> QueueEvent | None:
    match fact:
        case lf.NodeGivenUp(node) | rf.NodeDeclaredLost(node) | sf.NodeRemoved(node):
            return QueueEvent(MoveCause.NODE_LOST, node=node)
        case lf.NodeDisconnected(node):
            return QueueEvent(MoveCause.UNREACHABLE, node=node)
        case sf.NodeDrained(node, user):
            cause = MoveCause.QUARANTINE if user == ITSELF else MoveCause.DRAIN
            return QueueEvent(cause, node=node)
        case lf.NodeDescribed(node) | cf.NodeRegistered(node):
            return QueueEvent(MoveCause.NODE_CHANGED, node=node)
        case f.JobRequeued(job):
            return QueueEvent(MoveCause.RETRY, job=job)
        case f.JobReleased(job):
            return QueueEvent(MoveCause.RELEASE, job=job)
        case f.JobSubmitted(job):
            return QueueEvent(MoveCause.PRIORITY, job=job)
        case _:
            return None
