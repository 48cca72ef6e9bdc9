"""Leases of tasks: how long a cut-off node may continue a task, and when it has surely ended there.

An agent counts a lease from its last request that was answered, the coordinator from receipt of
that request. So the coordinator's lease ends later, and it adds a margin.

A gang of one has a lease only if its job sets one: it runs on, however long the coordinator is
away, and its node's silence never ends it.

The members of a gang of several nodes keep each other alive by vouching, unless the job sets a
lease: a member N runs while, within the last L seconds, it had the coordinator's answer or a vouch
of every other member. So the coordinator needs to know that one other member P vouches no more. Say
that N runs at T, and the next attempt begins at T by this lease. N asked for its last full vote at
t >= T - L. P was known to vouch no more at c <= T - L - margin, and gave no vouch after c, so that
t <= c: N has ended by c + L and the kill, which is before T.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.protocol.instant import Instant
from muster.protocol.text import named
from muster.spec.model import JobSpec
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, Job, State, Task

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


def may_vouch(job: Job, attempt: Attempt) -> bool:
    """True if the members of such a gang may keep each other alive: a fixed one of several nodes,
    whose job sets no lease."""
    fixed = len(attempt.tasks) > 1 and not job.spec.elastic
    return fixed and attempt.lease_s is not None and job.spec.lease_s is None


def vouches(job: Job, attempt: Attempt) -> bool:
    """True if the members of the gang may keep each other alive while the coordinator is away.

    A restored journal may lack that their plans had a key.
    """
    restored = job.is_restored(attempt.number)
    return bool(attempt.vouch_key) or (restored and may_vouch(job, attempt))


def over_at(state: State, attempt: Attempt, task: Task) -> float | None:
    """The time at which the lease proves a task of a silent node over, in monotonic seconds.

    Returns None if it never does, or if another member of the gang has to confirm its stop first.
    """
    if attempt.lease_s is None:
        return None
    since = state.nodes[task.node].answered_at
    if vouches(state.jobs[attempt.job], attempt):
        others = [it.mute_at for it in attempt.present if it is not task]
        confirmed = [at for at in others if at is not None]
        if not confirmed:
            return None
        since = max(since, min(confirmed))
    return since + attempt.lease_s + margin_s(attempt.lease_s)


def wait_text(state: State, attempt: Attempt, tasks: Iterable[Task], now: Instant) -> str:
    """Text on the lease that the coordinator waits out before it counts tasks of silent nodes as
    over."""
    silent = list(tasks)
    ends = [over_at(state, attempt, task) for task in silent]
    nodes = [task.node for task in silent]
    counts = "counts" if len(nodes) == 1 else "count"
    back = f"once {'it is' if len(nodes) == 1 else 'they are'} back"
    if attempt.lease_s is not None:
        lease = f"lease {attempt.lease_s:g} s and margin {margin_s(attempt.lease_s):g} s"
        if all(end is not None for end in ends):
            left_s = max(0.0, max(end for end in ends if end is not None) - now.mono)
            since = "" if vouches(state.jobs[attempt.job], attempt) else " after the last answer"
            back = f"in {left_s:.0f} s ({lease}{since}), {back}"
        else:
            back = f"{lease} after another node of its gang has confirmed a stop, {back}"
    return f"{named(nodes)} {counts} as ended {back}, or after: muster node lost {' '.join(nodes)}"
