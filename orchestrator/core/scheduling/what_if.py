"""A what-if: a copy of the state with a changed job or drained nodes.

The same code judges the copy and the state itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from msgspec import structs

from muster.protocol.ids import JobId, NodeName
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import SUPPOSED, rounded_down
from orchestrator.core.model.state import Job, State

WAITING = frozenset({JobPhase.QUEUED, JobPhase.HELD, JobPhase.BACKOFF})


def what_if_state(
    state: State,
    job: Job,
    nodes: int | None,
    drained: Collection[NodeName],
    time_limit_s: float | None = None,
) -> tuple[State, Job]:
    """Copies of state and job with the changes; `drained` are known nodes, and the job waits."""
    there = dict(state.nodes)
    for name in drained:
        if there[name].drain is None:
            there[name] = replace(there[name], drain=SUPPOSED)
    if nodes is not None:
        job = replace(job, spec=structs.replace(job.spec, nodes=nodes, max_nodes=None))
    if time_limit_s is not None:
        job = replace(job, spec=structs.replace(job.spec, time_limit_s=time_limit_s))
    plan = state.plan
    if drained:
        # The cached results hold only for the nodes before the drain.
        plan = structs.replace(plan, memo=None, seen={})
    if (nodes is not None or time_limit_s is not None) and job.id in plan.promises:
        # The promise was made to the unchanged job.
        plan = structs.replace(plan, promises={**plan.promises, job.id: -math.inf})
    return replace(state, nodes=there, jobs={**state.jobs, job.id: job}, plan=plan), job


def rerun_state(state: State, job: Job, nodes: int) -> tuple[State, Job]:
    """Copies in which the job has ended, and is about to be submitted again for fewer nodes."""
    again = replace(
        job,
        id=JobId(state.next_job),
        phase=JobPhase.HELD,
        spec=structs.replace(job.spec, nodes=nodes, max_nodes=None),
        attempts=[],
        avoid=frozenset(),
    )
    pool = job.spec.pool
    queue = [it for it in state.queues.get(pool, ()) if it[1] != job.id]
    ended = replace(job, phase=JobPhase.ENDED)
    jobs = {**state.jobs, job.id: ended, again.id: again}
    return replace(state, jobs=jobs, queues={**state.queues, pool: queue}), again


def what_if_text(
    nodes: int | None, drained: Collection[NodeName], time_limit_s: float | None
) -> str:
    """The assumption as text, to precede the result; empty without an assumption."""
    parts = []
    if nodes is not None:
        parts.append(f"it asked for {nodes} node{'' if nodes == 1 else 's'}")
    if time_limit_s is not None:
        parts.append(f"its time limit was {rounded_down(time_limit_s)}")
    if drained:
        was = "was" if len(drained) == 1 else "were"
        parts.append(f"{', '.join(sorted(drained))} {was} drained")
    return f"if {' and '.join(parts)}" if parts else ""
