"""Hints if `muster logs` printed nothing: whether the requested logs exist, and where to look."""

from __future__ import annotations

from collections.abc import Sequence

from muster.cli.errors import RefusedError
from muster.cli.output.format import safe
from muster.client import LogQuery
from muster.http.views import JobView, TaskView
from muster.protocol.states import ENDED_STATES


def refuse_rank(view: JobView, rank: int | None) -> None:
    """Raise RefusedError for a rank that no attempt of the job can have. Accepts any rank if the
    number of ranks depends on the nodes."""
    each = _ranks_each(view)
    if rank is None or each is None:
        return
    world = each * (view.nodes if view.max_nodes is None else view.max_nodes)
    if rank >= world:
        raise _no_rank(view, rank, world - 1)


def has_more_ranks(view: JobView) -> bool:
    """True if ranks other than 0 may have written. False if the job has not ended and the number
    depends on the GPUs of its only node."""
    if view.state in ENDED_STATES and view.started_at is None:
        return False
    if (view.max_nodes or view.nodes) > 1 or (_ranks_each(view) or 1) > 1:
        return True
    tasks = [task for attempt in view.attempts for task in attempt.tasks]
    return any(rank.rank > 0 for task in tasks for rank in task.ranks)


def refuse_unknown(view: JobView, query: LogQuery) -> None:
    """Raise RefusedError for an attempt, rank or node that the job does not have, or for a rank
    that ran on another node."""
    last = max((attempt.number for attempt in view.attempts), default=0)
    if query.attempt is not None and 0 < last < query.attempt:
        raise RefusedError(f"job {view.id} has no attempt {query.attempt}: {last} was the last")
    tasks = [task for attempt in view.attempts for task in attempt.tasks]
    nodes = sorted({task.node for task in tasks})
    if query.node is not None and nodes and query.node not in nodes:
        raise RefusedError(f"job {view.id} has no node {safe(query.node)}, only {', '.join(nodes)}")
    ranks = sorted({rank.rank for task in tasks for rank in task.ranks})
    if query.rank is None:
        return
    if ranks and query.rank not in ranks:
        raise _no_rank(view, query.rank, ranks[-1])
    if query.node is not None:
        _refuse_elsewhere(view, query.rank, query.node, query.attempt or last)


def _no_rank(view: JobView, rank: int, last: int) -> RefusedError:
    there = "only rank 0 is there" if last == 0 else f"0 to {last} are there"
    return RefusedError(f"job {view.id} has no rank {rank}: {there}")


def _refuse_elsewhere(view: JobView, rank: int, node: str, number: int) -> None:
    """Raise RefusedError if the rank ran on another node of the job."""
    tasks = [t for a in view.attempts if a.number == number for t in a.tasks if t.node == node]
    ranks = [rank for task in tasks for rank in _ranks_of(view, task)]
    if ranks and rank not in ranks:
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        raise RefusedError(
            f"rank {rank} of job {view.id} is not on {safe(node)}, which has {which}: "
            "leave --node out"
        )


def _ranks_of(view: JobView, task: TaskView) -> Sequence[int]:
    """Return the ranks of a task as reported at its end, otherwise as a fixed-size gang numbers
    them."""
    if task.ranks:
        return sorted(rank.rank for rank in task.ranks)
    each = _ranks_each(view) if view.max_nodes is None else None
    return range(task.node_rank * each, (task.node_rank + 1) * each) if each else ()


def _ranks_each(view: JobView) -> int | None:
    """Return the number of ranks per node. Returns None if nodes differ, or if it is their GPU
    count."""
    spec = view.spec
    if spec.get("launcher") == "none":
        return 1
    each = spec.get("nproc_per_node")
    roles = spec.get("roles") or {}
    differs = any("nproc_per_node" in role for role in roles.values())
    return each if isinstance(each, int) and not differs else None


def nothing_written(view: JobView, query: LogQuery) -> str:
    """Return the message for logs that exist but are empty."""
    job, over = view.id, view.state in ENDED_STATES
    said = f"job {job} has no output"
    if view.started_at is None:
        if over:
            return f"{said}: it never started\n  why: muster show {job}"
        return f"{said}: it is {view.state.value}\n  why: muster explain {job}"
    whose = f"rank {query.rank} of " if query.rank is not None else ""
    where = f" on {safe(query.node)}" if query.node is not None else ""
    some = query.since is not None or query.stream in {"stdout", "stderr"}
    which = " for these options" if some else ""
    yet = "" if over else " so far"
    show = f"muster show {job}"
    state = f"why it ended: {show}" if over and view.exit_code else f"its state: {show}"
    hints = [f"every rank: muster logs --rank all {job}"] if whose else [state]
    if whose and over and view.exit_code:
        hints.append(state)
    return "\n  ".join([f"{whose}{said}{which}{where}{yet}", *hints])
