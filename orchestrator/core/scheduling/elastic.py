"""Elastic gangs: nodes that may join a running gang. `failures.stops` lets tasks leave."""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.protocol.instant import Instant
from orchestrator.core.facts.jobs import Fact, RunTimed, TaskJoined, TaskStarted
from orchestrator.core.facts.queue import QueuesPlanned
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.scheduling.backfill import is_booked, may_grow
from orchestrator.core.scheduling.gpu_preference import is_short
from orchestrator.core.scheduling.gpus import given
from orchestrator.core.scheduling.placement import busy, preference, unfit
from orchestrator.core.scheduling.rendezvous import who_could_join
from orchestrator.core.scheduling.restore_hold import is_held, unknown_tasks
from orchestrator.core.scheduling.scheduler import frees_capacity
from orchestrator.core.scheduling.topology import same

COMES_BACK: Final = 2
"""Number of times one node may join the same attempt: each join restarts all ranks."""


def may_join(state: State, fact: Fact) -> bool:
    """True if this fact may let a node join a gang that no node could join before."""
    if isinstance(fact, QueuesPlanned):
        return True  # a waiting job may have given up a booked node
    return frees_capacity(state, fact) or (
        isinstance(fact, TaskStarted | RunTimed) and fact.job in state.elastic
    )


def next_join(state: State, now: Instant) -> TaskJoined | None:
    """A free node for a running gang that may grow, if no waiting job gets that node.

    Once None, it stays None until a fact for which `may_join` is true.
    """
    if state.disk_full or is_held(state):
        return None
    for name in sorted(state.elastic):
        job = state.jobs[name]
        attempt = job.attempts[-1]
        since = state.running.get(name)
        if since is None or job.cancel is not None or not may_grow(state, job):
            # After a restart of the coordinator, the nodes report how long the gang has run.
            continue
        if len(attempt.present) >= job.spec.most_nodes or _ending(attempt):
            continue
        if job.is_restored(attempt.number) or unknown_tasks(state, job):
            # The restored journal may lack a task that joined, so its id could be used twice.
            continue
        free = _free(state, job, attempt)
        found = next(who_could_join(state, attempt, free), None) if free else None
        if found is not None:
            node, endpoint = found
            gpus = given(state, job.spec, node.name)
            rank = len(attempt.tasks)
            ran_s = max(0.0, now.mono - since)
            return TaskJoined(job.id, attempt.number, rank, node.name, endpoint, gpus, ran_s)
    return None


def _ending(attempt: Attempt) -> bool:
    return any(task.exit is not None for task in attempt.present)


def _free(state: State, job: Job, attempt: Attempt) -> list[Node]:
    """Nodes that could join if they are on the gang's network, the preferred ones first."""
    joined = Counter(task.node for task in attempt.tasks if task.joined)
    refused = {task.node for task in attempt.tasks if task.refusal is not None}
    launcher = state.nodes[attempt.tasks[0].node]
    found = [
        node
        for node in state.nodes.values()
        if busy(state, job.spec, node) is None
        and not is_booked(state, job, node.name)
        and (job.id, attempt.number) not in node.holders
        and node.name not in job.avoid
        and node.name not in refused
        and joined[node.name] < COMES_BACK
        and unfit(job.spec, node) is None
        and same(job.spec, node, launcher)
        and (not is_short(job.spec, 1, node) or is_short(job.spec, 0, launcher))
    ]
    return sorted(found, key=lambda node: preference(state, job.spec, node))
