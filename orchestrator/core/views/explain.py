"""Explains a job's wait, placement or end by the scheduler's own verdicts, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar, assert_never

import msgspec

from muster.fabric.natural_sort import natural
from muster.http import views as h
from muster.http.explanation import AttemptStory, Explanation, JobAhead, NodeVerdict
from muster.protocol.instant import Instant
from muster.protocol.observations.gpus import divides
from muster.protocol.text import count
from muster.protocol.timestamp import Timestamp, timestamp
from orchestrator.core.model.blame import blame
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import LinkState, is_drained, rounded_down
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.model.status import job_state
from orchestrator.core.nodes.liveness import keeps_until
from orchestrator.core.scheduling.forecast import Forecast, ends_in_s, forecast
from orchestrator.core.scheduling.gpus import Holder, matching, room
from orchestrator.core.scheduling.network import reachable_gang
from orchestrator.core.scheduling.outlook import Outlook, outlook
from orchestrator.core.scheduling.placement import (
    SPREAD,
    Considered,
    PlacementVerdict,
    busy,
    consider,
    never_fits,
)
from orchestrator.core.scheduling.planned import planned_forecast
from orchestrator.core.scheduling.planned_ends import duration_s, expected_end
from orchestrator.core.scheduling.reasons import Rejection, jobs_named
from orchestrator.core.scheduling.restore_hold import why_held, why_job_held
from orchestrator.core.scheduling.topology import groups
from orchestrator.core.scheduling.what_if import rerun_state, what_if_state
from orchestrator.core.views.display import job_summary, node_state
from orchestrator.core.views.fabric import plan_of, was_refused
from orchestrator.core.views.went_ahead import ahead_of, went_ahead

TRIES: Final = 4
AHEAD_MAX: Final = 20
"""The number of jobs ahead in the queue that are named."""
NODES_A_STEP: Final = 64
_Found = TypeVar("_Found")


class Chance(msgspec.Struct, frozen=True):
    """The prospects of a waiting job: the jobs ahead of it, and the verdict on each node.

    `outlook` is None without backfill.
    """

    line: list[Job]
    found: Considered
    starts_now: bool
    outlook: Outlook | None


Steps = Generator[None, None, _Found]
"""A computation in steps of a few milliseconds each; the state must be the same in all of them."""


def finished(steps: Steps[_Found]) -> _Found:
    """Return the result of all steps at once."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: _Found = done.value
        return found


def chance(state: State, job: Job, now: Instant) -> Chance:
    """Return the scheduler's present verdict on a waiting job.

    A held or backed-off job is judged as if it were in its queue.
    """
    return finished(_chance(state, job, now))


def _chance(state: State, job: Job, now: Instant) -> Steps[Chance]:
    mine = (-job.spec.priority, job.id)
    queue = state.queues.get(job.spec.pool, [])
    line = [state.jobs[name] for rank, name in queue if (rank, name) < mine]
    found = consider(state, job)
    yield
    queued = job.phase is JobPhase.QUEUED
    if not state.policy(job.spec.pool).is_strict:
        seen = outlook(state, job, now)
        yield
        return Chance(line, found, queued and seen.starts_now, seen)
    held = state.disk_full or why_held(state) or why_job_held(state, job)
    starts = queued and not line and bool(found.gang) and not held
    return Chance(line, found, starts, None)


def explain(
    state: State, job: Job, now: Instant, sees: Callable[[str], bool] = lambda _user: True
) -> Explanation:
    """The same as `explain_steps`, at once."""
    return finished(explain_steps(state, job, now, sees))


def explain_steps(
    state: State, job: Job, now: Instant, sees: Callable[[str], bool] = lambda _user: True
) -> Steps[Explanation]:
    """Explain a job. `sees` decides of each user if the reader sees their jobs; others are left out
    of those before and behind it.
    """
    summary = job_summary(state, job, now)
    yield
    stories = tuple(_story(state, job, attempt, now, sees) for attempt in job.attempts)
    match job.phase:
        case JobPhase.QUEUED | JobPhase.HELD | JobPhase.BACKOFF:
            return (yield from _waiting(state, job, summary, stories, now, sees))
        case JobPhase.ACTIVE | JobPhase.ENDED:
            text = f"{summary.state.value}: {summary.reason.text}"
            return Explanation(summary, text, attempts=stories)
        case _:
            assert_never(job.phase)


def _waiting(
    state: State,
    job: Job,
    summary: h.JobSummary,
    stories: tuple[AttemptStory, ...],
    now: Instant,
    sees: Callable[[str], bool],
) -> Steps[Explanation]:
    it = yield from _chance(state, job, now)
    verdicts = []
    for number, verdict in enumerate(it.found.verdicts, 1):
        rejection = _rejection_in_line(job, verdict, it, now)
        verdicts.append(_verdict(state, job, verdict, rejection, it, now))
        if number % NODES_A_STEP == 0:
            yield
    impossible = never_fits(state, job.spec)
    yield
    queued = job.phase is JobPhase.QUEUED
    when, starts_by = _when(state, job, it, now) if impossible is None else ("", None)
    yield
    hints = yield from _hints(state, job, it, now)
    return Explanation(
        job=summary,
        text=f"cannot start: {impossible}" if impossible is not None else summary.reason.text,
        wanted=job.spec.nodes,
        ready=sum(verdict.rejection is None for verdict in it.found.verdicts),
        starts_now=it.starts_now,
        nodes=tuple(sorted(verdicts, key=lambda v: (not v.can, natural(v.node)))),
        place=len(it.line) + 1 if queued else None,
        ahead=tuple(
            JobAhead(a.id, a.spec.name, a.user, a.spec.priority, a.spec.nodes)
            for a in islice((other for other in it.line if sees(other.user)), AHEAD_MAX)
        ),
        starts_by=starts_by,
        forecast=when,
        hints=tuple(hints),
        attempts=stories,
        went_ahead=(
            went_ahead(state, job, it.outlook.plan, now, sees) if queued and it.outlook else ()
        ),
    )


def _rejection_in_line(
    job: Job, verdict: PlacementVerdict, it: Chance, now: Instant
) -> Rejection | None:
    """Return why the job cannot take the node. The first job in the queue gets a free node."""
    if it.outlook is not None:
        return verdict.rejection or _kept_for(job, verdict.node, it, it.outlook, now)
    if verdict.rejection is None and it.line:
        return Rejection("queue", f"is free, but job {it.line[0].id} is before it in the queue")
    return verdict.rejection


def _kept_for(job: Job, node: Node, it: Chance, seen: Outlook, now: Instant) -> Rejection | None:
    """Return the other job for which a free node is kept, in words."""
    if it.starts_now:
        return None
    if node.name in seen.first:
        return Rejection("queue", f"is free, but job {seen.first[node.name]} starts there now")
    ends = now.mono + duration_s(job.spec)
    for name, booking in sorted(seen.plan.bookings.items(), key=lambda pair: pair[1].start):
        needed = booking.start < ends or ends == math.inf
        if name == job.id or not needed or node.name not in booking.nodes:
            continue
        if booking.start == math.inf:
            return Rejection("promised", f"is free, and kept for job {name}, which is before it")
        in_text = rounded_down(booking.start - now.mono)
        return Rejection("promised", f"is free, and job {name} needs it in {in_text}")
    if it.line and seen.booking is None:
        return Rejection("queue", f"is free, but job {it.line[0].id} is before it in the queue")
    return None


def _verdict(
    state: State,
    job: Job,
    verdict: PlacementVerdict,
    rejection: Rejection | None,
    it: Chance,
    now: Instant,
) -> NodeVerdict:
    node = verdict.node
    if rejection is None:
        return NodeVerdict(node.name, True, h.Reason("free", _free_text(state, job, node)))
    text = rejection.text
    if rejection.code == "not_connected":
        text = f"{text}{_since_when(state, node, now)}"
    elif node.drain is not None and rejection.code == "drained":
        text = is_drained(node.drain, now)
    if not rejection.holders:
        return NodeVerdict(node.name, False, h.Reason(rejection.code, text))
    holder, in_s = _last_needed(state, job, node, rejection.holders, it, now)
    several = len({name for name, _ in rejection.holders}) > 1
    if in_s is not None:
        limit = f"; it is available when job {holder.id} ends" if several else ""
    else:
        limit = f"; job {holder.id} has no time limit" if several else ", which has no time limit"
    if rejection.code == "not_connected":
        # The end of its job does not bring back the node.
        in_s = None
    return NodeVerdict(
        node.name,
        False,
        h.Reason(rejection.code, f"{text}{limit}"),
        job=holder.id,
        free_by=None if in_s is None else timestamp(now.wall + in_s),
    )


def _free_text(state: State, job: Job, node: Node) -> str:
    if not node.holders:
        return "is free"
    others = f"beside {jobs_named(node.holders)}"
    return f"has {room(state, job.spec, node)} of {node.inventory.gpus} GPUs free, {others}"


def _last_needed(
    state: State, job: Job, node: Node, holders: tuple[Holder, ...], it: Chance, now: Instant
) -> tuple[Job, float | None]:
    """Return the holder whose end makes the node available, and in how many seconds at the latest.

    The seconds are None if unknown. All holders are assumed to end as late as they may.
    """
    ends = [(_ends_in_s(state, state.jobs[name], it, now), name) for name, _ in holders]
    ends.sort(key=lambda end: (end[0] is None, end[0] or 0.0, end[1]))
    trial = replace(node, link=LinkState.CONNECTED, holders=dict(node.holders))
    alone = State(nodes={node.name: trial})
    needed = ends[-1]
    for end in ends if node.holders else ():
        for holder in [one for one in trial.holders if one[0] == end[1]]:
            del trial.holders[holder]
        if busy(alone, job.spec, trial) is None:
            needed = end
            break
    return state.jobs[needed[1]], needed[0]


def _ends_in_s(state: State, job: Job, it: Chance, now: Instant) -> float | None:
    """Seconds until a running job has released its nodes, by the plan of the queues if there is
    one; None if unknown.
    """
    end = None if it.outlook is None else it.outlook.plan.ends.get(job.id)
    if end is None or job.current is None:
        return ends_in_s(state, job, now)
    in_s = expected_end(state, job, end, now) - now.mono
    return in_s if in_s < math.inf else None


def _since_when(state: State, node: Node, now: Instant) -> str:
    heard = f", last message {now.mono - node.heard_at:.0f} s ago" if node.heard_at > 0.0 else ""
    holder = f", has {jobs_named(node.holders)}" if node.holders else ""
    said = node_state(node, now, keeps_until(state, node))
    return f": {said.text}{heard}{holder}"


def _when(state: State, job: Job, it: Chance, now: Instant) -> tuple[str, Timestamp | None]:
    if it.starts_now:
        return "now", timestamp(now.wall)
    if state.disk_full:
        return f"unknown: no job is started: {state.disk_full}", None
    if held := why_held(state) or why_job_held(state, job):
        return f"unknown: {held}", None
    if it.outlook is None:
        found = forecast(state, job, it.line, now)
    elif it.outlook.starts_now:
        found = Forecast(0.0, "its nodes are free")
    else:
        found = planned_forecast(state, job, it.outlook, now)
    if found.in_s is None:
        return found.text, None
    match job.phase:
        case JobPhase.HELD:
            return f"{found.text}, were it released now", timestamp(now.wall + found.in_s)
        case JobPhase.BACKOFF:
            in_s = max(found.in_s, job.retry_after_s)
            return f"{found.text}, after its pause", timestamp(now.wall + in_s)
        case _:
            return found.text, timestamp(now.wall + found.in_s)


def _hints(state: State, job: Job, it: Chance, now: Instant) -> Steps[list[str]]:
    """Return the changes that would start the job now, with their commands."""
    if state.disk_full or why_held(state) or why_job_held(state, job):
        return []
    if it.found.gang:
        return _hints_of_order(job, it) or (yield from _hint_of_limit(state, job, it, now))
    if it.line:
        return []
    shared = _hint_of_sharing(job, it)
    fewer = yield from _largest_gang(state, job, it, now)
    if not fewer:
        return shared
    held = ", once released," if job.phase is JobPhase.HELD else ""
    how = f"muster rerun {job.id} --set nodes={fewer}, then muster cancel {job.id}"
    return [f"would{held} start now with nodes: {fewer} ({how})", *shared]


def _hint_of_sharing(job: Job, it: Chance) -> list[str]:
    """Return how jobs share a node, if one with GPUs is busy because a job takes all of it."""
    wanted = job.spec.resources.gpu
    taken: set[Holder] = set()
    for node, rejection in it.found.verdicts:
        if rejection is None or rejection.code != "busy" or not divides(node.inventory.devices):
            continue
        if (wanted or 0) < matching(node.inventory, job.spec.resources):
            taken |= {holder for holder, share in node.holders.items() if share.whole}
            taken |= set() if wanted else {(job.id, 0)}
    if not taken:
        return []
    takes = "takes" if len({name for name, _ in taken}) == 1 else "take"
    how = "jobs share a node if each names its GPUs (resources: {gpu: 1})"
    return [f"{jobs_named(taken)} {takes} whole nodes: {how}"]


def _hints_of_order(job: Job, it: Chance) -> list[str]:
    """Return hints for a job whose nodes are free, so that only the order keeps it waiting."""
    release = f"muster release {job.id}"
    if it.line if it.outlook is None else not it.outlook.starts_now:
        return []
    match job.phase:
        case JobPhase.HELD:
            return [f"would start now if released: {release}"]
        case JobPhase.BACKOFF:
            return [f"would start now without its pause: muster hold {job.id}, then {release}"]
        case _:
            return []


def _hint_of_limit(state: State, job: Job, it: Chance, now: Instant) -> Steps[list[str]]:
    """Return the longest time limit with which the job would have ended before others need its
    nodes, in whole minutes."""
    if it.outlook is None or it.starts_now or job.phase is not JobPhase.QUEUED:
        return []
    spec = job.spec
    around_s = duration_s(msgspec.structs.replace(spec, time_limit_s=0.0))
    most = math.inf if spec.time_limit_s is None else spec.time_limit_s / 60
    starts = {booking.start for booking in it.outlook.plan.bookings.values()} - {math.inf}
    minutes = {int((start - now.mono - around_s) // 60) for start in starts}
    for limit in sorted((one for one in minutes if 0 < one < most), reverse=True)[:TRIES]:
        if outlook(*what_if_state(state, job, None, (), limit * 60.0), now).starts_now:
            text = f"a time limit of {limit}m (muster set {job.id} time_limit={limit}m)"
            return [f"would start now with {text}"]
        yield
    return []


def _largest_gang(state: State, job: Job, it: Chance, now: Instant) -> Steps[int]:
    """Return the most nodes that a smaller gang could have now, 0 for none.

    The verdict is the scheduler's own for such a job, which is submitted after all others.
    """
    if job.spec.placement.include and job.spec.nproc_on:
        return 0  # its nodes are named one by one
    spec = job.spec
    free = [
        v.node
        for v in it.found.verdicts
        if v.rejection is None or v.rejection.code in ("network", SPREAD)
    ]
    most = min(job.spec.nodes - 1, len(free))
    gangs = [reachable_gang(group, 1, state.networks, most) or () for group in groups(spec, free)]
    together = max(gangs, key=len, default=()) if most else ()
    for nodes in range(len(together), 0, -1)[:TRIES]:
        if _starts_as_new(*rerun_state(state, job, nodes), now):
            return nodes
        yield
    return 0


def _starts_as_new(state: State, job: Job, now: Instant) -> bool:
    """True if a job that is not in its queue yet would start now."""
    if not state.policy(job.spec.pool).is_strict:
        return outlook(state, job, now).starts_now
    behind = any(place <= (-job.spec.priority, job.id) for place in state.queues[job.spec.pool])
    return not behind and bool(consider(state, job).gang)


def _story(
    state: State, job: Job, attempt: Attempt, now: Instant, sees: Callable[[str], bool]
) -> AttemptStory:
    cause = attempt.cause
    return AttemptStory(
        number=attempt.number,
        nodes=tuple(task.node for task in attempt.tasks),
        placement_reason=attempt.placement_reason,
        network=attempt.network,
        ended="" if cause is None else cause.text,
        then=_then(job, attempt),
        fabric=_fabric(attempt),
        ahead_of=ahead_of(state, job, now, sees) if attempt is job.current else "",
    )


def _fabric(attempt: Attempt) -> str:
    """Describe the transport of the attempt and why it was chosen, as far as decided."""
    if was_refused(attempt):
        return "no plan: the gang was refused"
    plan = plan_of(attempt)
    return "" if plan is None or len(attempt.tasks) < 2 else "; ".join((plan.text, *plan.notes))


def _then(job: Job, attempt: Attempt) -> str:
    """Describe what followed an attempt that is over."""
    if attempt is job.current:
        return "" if attempt.cause is None else "its nodes are being cleaned"
    later = next((it.number for it in job.attempts if it.number > attempt.number), None)
    if later is not None or job.phase in (JobPhase.QUEUED, JobPhase.BACKOFF):
        budget = f"attempt {later or job.next_attempt}"
        guilty = sorted(blame(job), key=natural)
        away = f", not on {', '.join(guilty[:4])}" if job.avoid and guilty else ""
        return f"retried: {budget}{away}"
    if job.phase is JobPhase.HELD:
        return "retried once it is released"
    state = job_state(job).value
    tries = f" after {count(len(job.attempts), 'attempt')}" if len(job.attempts) > 1 else ""
    return f"the job ended{tries}: {state}, exit code {job.cause.exit_code if job.cause else 0}"
