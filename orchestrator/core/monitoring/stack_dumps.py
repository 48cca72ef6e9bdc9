"""Stack dumps of a running gang, on a user's request or to judge a suspected hang.

Each attempt has at most one dump at a time; requests that arrive meanwhile get the result of that
dump. Dumps are numbered within an epoch, so answers to an earlier run of the coordinator are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from msgspec.structs import replace

from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.instant import ROUNDING_S, Instant
from muster.protocol.link.control_channel import DumpStacks, StacksReport
from muster.protocol.observations.hangs import (
    Doing,
    Hang,
    HangKind,
    HangVerdict,
    RankActivity,
    RankStacks,
    StacksView,
)
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import JobState, TaskState
from muster.protocol.text import named
from muster.spec.model import Rendezvous, ranks_on_node
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.effects import unknown_job
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.facts.webhooks import WebhookEvent
from orchestrator.core.failures.stops import stop
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.members import gang_members, seat
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Attempt, Job, StackDump, State, Task
from orchestrator.core.model.status import job_state
from orchestrator.core.monitoring.ended_ranks import ended_ranks
from orchestrator.core.monitoring.hang_rules import Opinion, due_in_s, opinion, suspicion, verdict
from orchestrator.core.monitoring.stack_analysis import grouped
from orchestrator.core.webhooks.outbox import queue_webhooks

RECORDS_KEPT: Final = 64
_WEBHOOK_EVENT: Final = {HangKind.HUNG: WebhookEvent.HUNG, HangKind.SLOW: WebhookEvent.SLOW}


def ask(state: State, asked: s.StacksReceived, now: Instant, limits: Limits) -> Decision:
    """Handle a user's request for the stacks of a job."""
    job = state.jobs.get(asked.job)
    if job is None:
        return Decision([], [a.Answer(asked.request, unknown_job(asked.job))])
    attempt = job.current
    running = attempt is not None and attempt.phase is AttemptPhase.RUNNING
    if attempt is None or not running or job_state(job) is not JobState.RUNNING:
        text = f"job {job.id} is {job_state(job).value}: only running ranks have stacks"
        hint = f"its progress: muster show {job.id}; its data: muster evidence {job.id}"
        return Decision([], [a.Answer(asked.request, a.Declined("not_running", text, hint))])
    if (job.id, attempt.number) in state.stack_dumps:
        return Decision([hf.StackDumpJoined(job.id, attempt.number, asked.request)])
    return _begin(state, job, attempt, now, limits, request=asked.request)


def answered(state: State, task: Task | None, report: StacksReport, now: Instant) -> Decision:
    """Record a node's answer to a stack dump."""
    if task is None or report.epoch != state.epoch:
        return Decision()
    look = state.stack_dumps.get((task.job, task.attempt))
    if look is None or look.number != report.number or task.id not in look.awaited:
        return Decision()
    facts: list[f.Fact] = []
    if report.activity:
        facts.append(TaskObserved(task.id, now.mono, activity=report.activity))
    facts.append(hf.StacksReported(task.id, report))
    return Decision(facts)


def evaluate_hang(
    state: State, job: Job, attempt: Attempt, now: Instant, limits: Limits
) -> Decision:
    """Judge the gang after new activity data, or when a timer has fired."""
    if attempt.phase is not AttemptPhase.RUNNING or (job.id, attempt.number) in state.stack_dumps:
        return Decision()
    ranks = _ranks(state, job, attempt, now)
    if attempt.hang is not None:
        moves = ranks is not None and any(
            rank.still_s is None and rank.doing is not Doing.GONE for rank in ranks
        )
        quiet = ranks is not None and suspicion(ranks, limits.hangs) is not None
        if moves and not quiet:
            return Decision([hf.HangCleared(job.id, attempt.number)])
        if _final(job, attempt.hang):
            return Decision()
    if ranks is None:
        return Decision()
    suspected = suspicion(ranks, limits.hangs)
    watch = state.watches.get((job.id, attempt.number))
    if suspected is None:
        facts: list[f.Fact] = [] if watch is None else [hf.HangDismissed(job.id, attempt.number)]
        due = due_in_s(ranks, limits.hangs)
        return Decision(
            facts, [] if due is None else [_timer(job, attempt, now.mono + max(due, ROUNDING_S))]
        )
    if watch is not None and now.mono < watch.again_at - ROUNDING_S:
        return Decision([], [_timer(job, attempt, watch.again_at)])
    return _begin(state, job, attempt, now, limits)


def react_to_stack_dump(
    state: State,
    fact: hf.StackDumpBegun | hf.StacksReported | hf.HangJudged,
    now: Instant,
    limits: Limits,
) -> Decision:
    """The immediate consequences of a fact about stacks."""
    match fact:
        case hf.StacksReported(name):
            job, number, _ = parse_task_id(name)
        case hf.StackDumpBegun() | hf.HangJudged():
            job, number = fact.job, fact.attempt
        case _:
            assert_never(fact)
    attempt = state.attempt(job, number)
    look = state.stack_dumps.get((job, number))
    if attempt is None:
        return Decision()
    match fact:
        case hf.StackDumpBegun() | hf.StacksReported():
            if look is None or look.awaited:
                return Decision()
            return _ended(state, state.jobs[job], attempt, look, now, limits)
        case hf.HangJudged():
            facts = queue_webhooks(state, state.jobs[job], _WEBHOOK_EVENT[fact.verdict.kind])
            cause = _hung(state.jobs[job], fact)
            if cause is None or attempt.phase is not AttemptPhase.RUNNING:
                return Decision(facts)
            return Decision([*facts, stop(attempt, cause)])
        case _:
            assert_never(fact)


def timer_fired(state: State, timer: a.Timer, now: Instant, limits: Limits) -> Decision:
    """Judge the gang when its timer fires, or end a stack dump that has timed out."""
    attempt = state.attempt(timer.job, timer.attempt)
    look = state.stack_dumps.get((timer.job, timer.attempt))
    if timer.kind is a.TimerKind.HANG:
        if attempt is None:
            return Decision()
        return evaluate_hang(state, state.jobs[timer.job], attempt, now, limits)
    if look is None:
        return Decision()
    if now.mono < look.until - ROUNDING_S:
        return Decision([], [a.SetTimer(timer, look.until)])
    if attempt is None:
        gone = unknown_job(timer.job)
        answers: list[a.Effect] = [a.Answer(a.RequestId(one), gone) for one in look.requests]
        return Decision([hf.StackDumpEnded(timer.job, timer.attempt)], answers)
    return _ended(state, state.jobs[timer.job], attempt, look, now, limits)


def _ended(
    state: State, job: Job, attempt: Attempt, look: StackDump, now: Instant, limits: Limits
) -> Decision:
    """End a dump: answer the requests and judge the gang.

    Called once all nodes have answered, or time is up.
    """
    view = a.Stacks(_view(attempt, look))
    decision = Decision(
        [hf.StackDumpEnded(job.id, attempt.number)],
        [a.Answer(a.RequestId(request), view) for request in look.requests],
    )
    if attempt.phase is not AttemptPhase.RUNNING:
        return decision
    if not look.judges:
        # A check that was due meanwhile had been put off for this dump.
        return Decision(decision.facts, [*decision.effects, _timer(job, attempt, now.mono)])
    if attempt.hang is not None and _final(job, attempt.hang):
        return decision
    judged = _judge(state, job, attempt, look, now, limits)
    return Decision([*decision.facts, *judged.facts], [*decision.effects, *judged.effects])


def _final(job: Job, found: HangVerdict) -> bool:
    """True if another dump could not change the verdict.

    A slow gang may still come to hang, and a restart requires certainty.
    """
    return found.kind is HangKind.HUNG and (found.firm or job.spec.hang is not Hang.RESTART)


def _certainty(found: HangVerdict) -> int:
    return 0 if found.kind is HangKind.SLOW else 1 + found.firm


def _hung(job: Job, fact: hf.HangJudged) -> Cause | None:
    """The cause that ends the attempt, if the job asks for a restart; otherwise None."""
    found = fact.verdict
    if found.kind is not HangKind.HUNG or job.spec.hang is not Hang.RESTART:
        return None
    if not found.firm:
        return None
    return Cause(
        CauseCode.HUNG, Outcome.INFRA, found.text, node=found.node or None, rank=found.rank
    )


def _begin(
    state: State,
    job: Job,
    attempt: Attempt,
    now: Instant,
    limits: Limits,
    request: a.RequestId | None = None,
) -> Decision:
    number = state.look_number + 1
    deep = job.spec.hang is not Hang.NOTIFY and request is None
    watch = state.watches.get((job.id, attempt.number))
    # Because a recorder dump makes the rank write files, only the second, judging dump asks for it.
    recorder = deep and watch is not None and bool(watch.first)
    notes: list[str] = []
    sends: list[a.Effect] = []
    awaited: list[TaskId] = []
    for task in attempt.present:
        node = state.nodes[task.node]
        if task.state is not TaskState.STARTED:
            notes.append(f"{task.node}: the job has no process there now")
        elif node.session is None:
            notes.append(f"{task.node} cannot be reached now")
        else:
            look = DumpStacks(task.id, state.epoch, number, threads=deep, recorder=recorder)
            sends.append(a.Send(task.node, node.session, look))
            awaited.append(task.id)
    until = now.mono + limits.hangs.look_s
    begun = hf.StackDumpBegun(
        job.id,
        attempt.number,
        number,
        tuple(awaited),
        until,
        () if request is None else (request,),
        tuple(notes),
        judges=request is None,
    )
    timer = a.Timer(a.TimerKind.STACKS, job=job.id, attempt=attempt.number)
    return Decision([begun], [*sends, a.SetTimer(timer, until if awaited else now.mono)])


def _judge(
    state: State, job: Job, attempt: Attempt, look: StackDump, now: Instant, limits: Limits
) -> Decision:
    key = job.id, attempt.number
    ranks = _ranks(state, job, attempt, now)
    suspected = None if ranks is None else suspicion(ranks, limits.hangs)
    watch = state.watches.get(key)
    if ranks is None or suspected is None or look.awaited:
        return _dismissed(job, attempt, now, limits.hangs.quiet_s)
    stacks = {rank.rank: rank for report in look.reports.values() for rank in report.ranks}
    if watch is None or not watch.first:
        at = now.mono + limits.hangs.again_s
        first = tuple(stacks.values()) or (RankStacks(-1),)
        return Decision([hf.HangSuspected(*key, first, at)], [_timer(job, attempt, at)])
    before = {rank.rank: rank for rank in watch.first}
    found = opinion(suspected, ranks, before, stacks)
    quiet_s = max(rank.still_s or 0.0 for rank in ranks if rank.doing is not Doing.GONE)
    if found is Opinion.DISMISSED:
        return _dismissed(job, attempt, now, limits.hangs.quiet_s)
    if found is Opinion.SLOW and quiet_s < limits.hangs.slow_s:
        rest_s = limits.hangs.slow_s - quiet_s
        return _dismissed(job, attempt, now, min(limits.hangs.quiet_s, rest_s))
    kind = HangKind.HUNG if found is Opinion.HUNG else HangKind.SLOW
    judgement = verdict(
        kind, suspected, ranks, stacks, _homes(attempt, look), _notes(attempt, look)
    )
    if attempt.hang is not None and _certainty(judgement) <= _certainty(attempt.hang):
        return _dismissed(job, attempt, now, limits.hangs.quiet_s)
    recorded = tuple(one for report in look.reports.values() for one in report.recorded)
    judged = hf.HangJudged(*key, replace(judgement, recorded=recorded[:RECORDS_KEPT]))
    if _final(job, judgement):
        return Decision([judged])
    again = _dismissed(job, attempt, now, limits.hangs.quiet_s)
    return Decision([judged, *again.facts], again.effects)


def _dismissed(job: Job, attempt: Attempt, now: Instant, seconds: float) -> Decision:
    at = now.mono + max(seconds, 0.01)
    fact = hf.HangDismissed(job.id, attempt.number, at)
    return Decision([fact], [_timer(job, attempt, at)])


def _timer(job: Job, attempt: Attempt, at: float) -> a.Effect:
    return a.SetTimer(a.Timer(a.TimerKind.HANG, job=job.id, attempt=attempt.number), at)


def _ranks(
    state: State, job: Job, attempt: Attempt, now: Instant
) -> tuple[RankActivity, ...] | None:
    """All ranks of the gang as of now; None while the activity of some rank is unknown."""
    found: list[RankActivity] = []
    ended: list[RankActivity] = []
    since = state.running.get(job.id)
    for task in attempt.present:
        node = state.nodes[task.node]
        if task.exit is not None:
            ended += ended_ranks(job, task, None if since is None else now.mono - since)
            continue
        seen = node.link is LinkState.CONNECTED and task.state is TaskState.STARTED
        if not seen or not task.activity:
            return None
        age = max(0.0, now.mono - task.activity_at)
        found += [rank.later(age) for rank in task.activity]
    fixed = not job.spec.elastic and job.spec.rendezvous is Rendezvous.STATIC
    whole = fixed and all(task.exit is None for task in attempt.present)
    if whole and len(found) < _ranks_expected(job, attempt):
        return None
    return (*found, *ended) if found else None


def _ranks_expected(job: Job, attempt: Attempt) -> int:
    """The number of ranks of the gang as it is now."""
    return sum(ranks_on_node(job.spec, seat(task)) for task in gang_members(attempt))


def _homes(attempt: Attempt, look: StackDump) -> Mapping[int, str]:
    tasks = {task.id: task.node for task in attempt.present}
    return {
        rank.rank: tasks[name]
        for name, report in look.reports.items()
        for rank in report.activity or ()
        if name in tasks
    } | {
        rank.rank: tasks[name]
        for name, report in look.reports.items()
        for rank in report.ranks
        if name in tasks
    }


def _notes(attempt: Attempt, look: StackDump) -> tuple[str, ...]:
    """Sentences on the missing parts of the dump."""
    tasks = {task.id: task.node for task in attempt.tasks}
    notes = list(look.notes)
    notes += [f"{tasks[name]} has not answered in time" for name in sorted(look.awaited)]
    problems: dict[str, list[str]] = {}
    for name, report in sorted(look.reports.items()):
        if report.problem:
            problems.setdefault(report.problem, []).append(tasks[name])
    notes += [f"{named(nodes)}: {problem}" for problem, nodes in problems.items()]
    for name, report in sorted(look.reports.items()):
        notes += [
            f"rank {rank.rank} on {tasks[name]}: {rank.problem}"
            for rank in report.ranks
            if rank.problem
        ][:4]
    return tuple(notes[:16])


def _view(attempt: Attempt, look: StackDump) -> StacksView:
    ranks = tuple(
        sorted(
            (rank for report in look.reports.values() for rank in report.ranks),
            key=lambda rank: rank.rank,
        )
    )
    activity = tuple(
        sorted(
            (rank for report in look.reports.values() for rank in report.activity),
            key=lambda rank: rank.rank,
        )
    )
    groups = grouped([rank for rank in ranks if rank.main], _homes(attempt, look))
    return StacksView(attempt.job, attempt.number, groups, ranks, activity, _notes(attempt, look))
