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

In an elastic gang, N asks the members that its terms name. Terms are numbered, and N never goes
back behind those that it has confirmed. P counts for N only if all terms that N may follow name P.
N may have asked for a vote under earlier terms without P, so c is not before N's confirmation of
the terms that named P. If N has left the gang, P vouches for N no more once P has confirmed terms
without N.
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
"""The drift between two clocks: each by 2 %."""
LONG_DRIFT: Final = 0.042
"""The same for long leases, where the slack does not make up for 1.02 / 0.98 being over 1.04."""


def lease_of(spec: JobSpec, limits: Limits) -> float | None:
    """The lease of a new attempt's tasks, in seconds. Returns None if they have none.

    At least three heartbeats, so that a lost heartbeat does not end the job.
    """
    if spec.lease_s is not None:
        return max(spec.lease_s, 3 * limits.heartbeat_s)
    return limits.lease_s if spec.most_nodes > 1 else None


def margin_s(lease_s: float) -> float:
    """The wait of the coordinator beyond a lease, in seconds."""
    return KILL_S + max(SLACK_S + DRIFT * lease_s, LONG_DRIFT * lease_s)


def may_vouch(job: Job, attempt: Attempt) -> bool:
    """True if the members of such a gang may keep each other alive: one of several nodes or an
    elastic one, whose job sets no lease."""
    gang = len(attempt.tasks) > 1 or job.spec.elastic
    return gang and attempt.lease_s is not None and job.spec.lease_s is None


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
    job, since = state.jobs[attempt.job], state.nodes[task.node].answered_at
    if vouches(job, attempt):
        if job.spec.elastic and job.is_restored(attempt.number):
            return None  # the journal may lack terms that the node follows
        confirmed = [_mute_for(attempt, task, it) for it in attempt.tasks if it is not task]
        found = [at for at in confirmed if at is not None]
        if not found:
            return None
        since = max(since, min(found))
    return since + attempt.lease_s + margin_s(attempt.lease_s)


def _mute_for(attempt: Attempt, task: Task, other: Task) -> float | None:
    """Return since when `task` gets no full vote, because `other` vouches for it no more.

    Returns None if `other` may vouch for it, or if `task` may follow terms without `other`.
    """
    known = max(task.terms, task.planned_terms)
    last = attempt.terms if task.member_until is None else task.member_until - 1
    if other.member_from is None or other.member_from > known:
        return None
    if other.member_until is not None and other.member_until <= last:
        return None
    mute = [] if other.mute_at is None else [other.mute_at]
    if task.member_until is not None and other.terms >= task.member_until:
        mute.append(other.terms_at)
    if not mute:
        return None
    earlier_terms = other.member_from > task.planned_terms
    return max(min(mute), task.terms_at) if earlier_terms else min(mute)


def wait_text(state: State, attempt: Attempt, tasks: Iterable[Task], now: Instant) -> str:
    """Text on the lease that the coordinator waits out before it counts tasks of silent nodes as
    over."""
    silent = list(tasks)
    ends = [over_at(state, attempt, task) for task in silent]
    nodes = [task.node for task in silent]
    one = len(nodes) == 1
    back = f"once {'it is' if one else 'they are'} back"
    if attempt.lease_s is not None:
        lease = f"lease {attempt.lease_s:g} s and margin {margin_s(attempt.lease_s):g} s"
        if all(end is not None for end in ends):
            left_s = max(0.0, max(end for end in ends if end is not None) - now.mono)
            since = "" if vouches(state.jobs[attempt.job], attempt) else " after the last answer"
            back = f"in {left_s:.0f} s ({lease}{since}), {back}"
        else:
            back = f"{lease} after another node of its gang has confirmed a stop, {back}"
    tasks_on = f"the {'task' if one else 'tasks'} on {named(nodes)} {'counts' if one else 'count'}"
    return f"{tasks_on} as ended {back}, or after: muster node lost {' '.join(nodes)}"
