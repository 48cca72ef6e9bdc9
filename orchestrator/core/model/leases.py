"""Leases of tasks: how long a cut-off node may continue a task, and when it has surely ended there.

An agent counts a lease from its last request that was answered, the coordinator from receipt of
that request. So the coordinator's lease ends later, and it adds a margin.

A gang of one has a lease only if its job sets one: it runs on, however long the coordinator is
away, and its node's silence never ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.protocol.instant import Instant
from muster.protocol.text import named
from muster.spec.model import JobSpec
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, State, Task

KILL_S: Final = 10.0
"""The time that a shim gives the ranks after the lease: `LEASE_GRACE_S` in `agent.shim`."""
SLACK_S: Final = 5.0
"""For the kill itself, on a busy node."""
DRIFT: Final = 0.04
"""How far two clocks may part: each by 2 %."""


def lease_of(spec: JobSpec, limits: Limits) -> float | None:
    """The lease of a new attempt's tasks, in seconds. Returns None if they have none.

    At least three heartbeats, so that a lost heartbeat does not end the job.
    """
    if spec.lease_s is not None:
        return max(spec.lease_s, 3 * limits.heartbeat_s)
    return limits.lease_s if spec.most_nodes > 1 else None


def margin_s(lease_s: float) -> float:
    """The wait of the coordinator beyond a lease, in seconds."""
    return KILL_S + SLACK_S + DRIFT * lease_s


def over_at(state: State, attempt: Attempt, task: Task) -> float | None:
    """The time at which the lease proves a task of a silent node over, in monotonic seconds.

    Returns None if it never does.
    """
    if attempt.lease_s is None:
        return None
    return state.nodes[task.node].answered_at + attempt.lease_s + margin_s(attempt.lease_s)


def wait_text(state: State, attempt: Attempt, tasks: Iterable[Task], now: Instant) -> str:
    """Text on the lease that the coordinator waits out before it counts tasks of silent nodes as
    over."""
    silent = list(tasks)
    ends = [over_at(state, attempt, task) for task in silent]
    nodes = [task.node for task in silent]
    counts = "counts" if len(nodes) == 1 else "count"
    back = f"once {'it is' if len(nodes) == 1 else 'they are'} back"
    lease_s = attempt.lease_s
    if lease_s is not None and all(end is not None for end in ends):
        left_s = max(0.0, max(end for end in ends if end is not None) - now.mono)
        back = (
            f"in {left_s:.0f} s (lease {lease_s:g} s and margin {margin_s(lease_s):g} s after the "
            f"last answer), {back}"
        )
    return f"{named(nodes)} {counts} as ended {back}, or after: muster node lost {' '.join(nodes)}"
