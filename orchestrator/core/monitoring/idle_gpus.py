"""Detection of gangs that do not use their GPUs, for jobs with an `idle` section.

A gang is idle once all GPUs of all its nodes have been idle for the whole time. A node that is
unreachable or cannot read its GPUs is not idle. Nodes report idleness only after half of that time,
so a gang that computes costs no message.
"""

from __future__ import annotations

from typing import Final, assert_never

from msgspec import UNSET, UnsetType

from muster.protocol.ids import JobId
from muster.protocol.instant import ROUNDING_S, Instant
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.observations.gpus import IdleGpus
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from muster.spec.model import Idle, IdleAction, JobSpec
from muster.spec.units import duration_text
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import stop
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.webhooks.outbox import queue_webhooks

WARNED: Final = 0.5
"""Part of the time after which the user is warned, if the job is to be stopped."""


def asked_of_nodes(spec: JobSpec) -> IdleGpus | None:
    """The idleness that the agents should report for the job; None if it has no `idle` section."""
    if spec.idle is None:
        return None
    return IdleGpus(spec.idle.gpu_util_below, spec.idle.for_s * WARNED)


def idle_since(job: Job, task: Task, report: TaskReport, now: Instant) -> float | UnsetType | None:
    """Return since when the task's GPUs are idle as reported; UNSET if that is nothing new."""
    if not _counts(job, task, report):
        return UNSET
    if report.observed.idle_s is not None:
        return now.mono - report.observed.idle_s
    return UNSET if task.idle_since is None else None


def idle_over(
    job: Job, attempt: Attempt, task: Task, report: TaskReport, now: Instant
) -> list[f.Fact]:
    """Return the end of the gang's idleness, if a report shows that GPUs of the task are busy.

    From now on the gang has to be idle for the whole time again, whatever its nodes report later.
    Otherwise a node could make any number of verdicts.
    """
    busy = _counts(job, task, report) and report.observed.idle_s is None
    if busy and attempt.idle and attempt.phase is AttemptPhase.RUNNING:
        key = job.id, attempt.number
        return [idf.IdleOver(*key), idf.IdleTimed(*key, now.mono)]
    return []


def _counts(job: Job, task: Task, report: TaskReport) -> bool:
    return job.spec.idle is not None and task.present and report.state is TaskState.STARTED


def schedule_idle_check(job: Job, attempt: Attempt, now: Instant) -> list[a.Effect]:
    """Schedule a check of the gang by a timer.

    The timer ensures one check, however many facts arrive together.
    """
    return [] if job.spec.idle is None else [_timer(job.id, attempt.number, now.mono)]


def evaluate_idle(state: State, job: Job, attempt: Attempt, now: Instant) -> Decision:
    """Judge the gang when the timer has fired."""
    idle = job.spec.idle
    if idle is None or attempt.phase is not AttemptPhase.RUNNING:
        return Decision()
    since = _idle_since(state, job, attempt)
    if since is None:
        return Decision()
    key = job.id, attempt.number
    if not attempt.idle:
        since = max(since, state.idle_reported.get(job.id, since))
        stops = idle.action is IdleAction.STOP
        reported_at = since + idle.for_s * (WARNED if stops else 1.0)
        if now.mono < reported_at - ROUNDING_S:
            return Decision([], [_timer(*key, reported_at)])
        return Decision([idf.IdleTimed(*key, now.mono), idf.IdleJudged(*key, _words(idle))])
    match idle.action:
        case IdleAction.NOTIFY:
            return Decision()
        case IdleAction.STOP:
            # ^The user gets the rest of the time after the warning, however long no coordinator
            # ran.
            reported = state.idle_reported.get(job.id)
            ends_at = since + idle.for_s
            if reported is not None:
                ends_at = max(ends_at, reported + idle.for_s * (1.0 - WARNED))
            if now.mono < ends_at - ROUNDING_S:
                return Decision([], [_timer(*key, ends_at)])
            return Decision([stop(attempt, _cause(idle))])
        case _:
            assert_never(idle.action)


def react_to_idle(state: State, fact: idf.IdleJudged, now: Instant) -> Decision:
    """The immediate consequences of the verdict that a gang is idle."""
    queued = queue_webhooks(state, state.jobs[fact.job], nf.WebhookEvent.IDLE)
    return Decision(queued, [_timer(fact.job, fact.attempt, now.mono)])


def apply_idle(state: State, fact: idf.OfIdle, at: float) -> None:
    match fact:
        case idf.IdleTimed(job, _, reported):
            state.idle_reported[job] = reported
        case idf.IdleJudged(job, number, text):
            attempt = state.jobs[job].attempt(number)
            attempt.idle = text
            attempt.changes.add(at, text)
        case idf.IdleOver(job, number):
            attempt = state.jobs[job].attempt(number)
            attempt.idle = ""
            attempt.changes.add(at, fact.describe())
            state.idle_reported.pop(job, None)
        case _:
            assert_never(fact)


def _idle_since(state: State, job: Job, attempt: Attempt) -> float | None:
    """The time since which all GPUs of the gang are idle; None if they are not."""
    since = [state.running.get(job.id)]
    here = [task for task in attempt.present if task.exit is None]
    for task in here:
        reached = state.nodes[task.node].link is LinkState.CONNECTED
        seen = reached and task.state is TaskState.STARTED
        since.append(task.idle_since if seen else None)
    known = [at for at in since if at is not None]
    return max(known) if here and len(known) == len(since) else None


def _timer(job: JobId, attempt: int, at: float) -> a.Effect:
    return a.SetTimer(a.Timer(a.TimerKind.IDLE, job=job, attempt=attempt), at)


def _words(idle: Idle) -> str:
    text = f"all its GPUs have been used less than {idle.gpu_util_below} % for"
    if idle.action is IdleAction.NOTIFY:
        return f"{text} {duration_text(idle.for_s)}"
    first_s = idle.for_s * WARNED
    rest = duration_text(idle.for_s - first_s)
    return f"{text} {duration_text(first_s)}: it is stopped if they stay idle for {rest} more"


def _cause(idle: Idle) -> Cause:
    text = (
        f"cancelled by `idle` of the job: all its GPUs were used less than {idle.gpu_util_below} % "
        f"for {duration_text(idle.for_s)}"
    )
    return Cause(CauseCode.IDLE, Outcome.CANCELLED, text)
