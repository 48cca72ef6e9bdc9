"""User requests for a submitted job: cancel, hold, release, change, signal.

Every refusal states the problem and the next step.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from msgspec import UNSET

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Launcher, Rendezvous
from muster.spec.units import duration_text
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision, answer
from orchestrator.core.facts.effects import unknown_job
from orchestrator.core.failures.stops import stop
from orchestrator.core.gangs.launch import gang_of
from orchestrator.core.gangs.retry_policy import cancelled
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.grace import grace_now_s, stop_grace_s
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Attempt, Job, State
from orchestrator.core.model.status import job_state

REQUESTS_MAX: Final = 10_000
_REFUSED: Final = {
    "SIGKILL": (
        "SIGKILL would make the ranks look failed",
        "to end the job at once: muster cancel --force {job}",
    ),
    "SIGTERM": (
        "SIGTERM asks the ranks to end, and would look like their own failure",
        "to end the job: muster cancel {job} (its stop.signal, then its grace)",
    ),
    "SIGSTOP": (
        "SIGSTOP would leave the gang hanging until its communication times out",
        "to have the nodes for another job: muster cancel {job}, and muster rerun {job} later",
    ),
}


def cancel(state: State, asked: s.CancelReceived) -> Decision:
    """Cancel a job. Idempotent; a stop that has begun may be shortened, never extended."""
    job = state.jobs.get(asked.job)
    if job is None:
        return answer(asked.request, unknown_job(asked.job))
    if job.phase is JobPhase.ENDED:
        return answer(asked.request, a.Cancelled(job.id, already_ended=True))
    decision, note = Decision(), ""
    if job.cancel is None or (asked.force and not job.cancel[3]):
        decision.facts.append(
            f.CancelRequested(job.id, asked.user, asked.reason, asked.grace_s, asked.force)
        )
    attempt, cause = job.current, cancelled(asked.user, asked.reason)
    if attempt is None:
        decision.facts.append(f.JobEnded(job.id, cause))
    elif attempt.phase is not AttemptPhase.STOPPING:
        decision.facts.append(stop(attempt, cause))
    elif asked.force:
        if not attempt.forced:
            decision.facts.append(f.StopForced(job.id, attempt.number))
    elif asked.grace_s is not None:
        fact, note = _shorter(state, job, attempt, asked)
        decision.facts += fact
    decision.effects.append(
        a.Answer(asked.request, a.Cancelled(job.id, already_ended=False, note=note))
    )
    return decision


def _shorter(
    state: State, job: Job, attempt: Attempt, asked: s.CancelReceived
) -> tuple[list[f.Fact], str]:
    """Shorten the grace period, or return a note that explains why not.

    The wall clock decides nothing: nodes keep whichever deadline comes first.
    """
    grace_s = asked.grace_s
    assert grace_s is not None
    if stop_grace_s(job, attempt) is None:
        return [], "it has ended by itself, and its nodes are being cleaned"
    if attempt.forced or (job.cancel is not None and job.cancel[3]):
        return [], "it is being killed already"
    now_s = grace_now_s(attempt)
    if grace_s >= now_s:
        kept = duration_text(now_s)
        return [], f"its stop has begun with a grace of {kept}, which cannot be extended"
    # Each cut is recorded. The space that is left must do for the ends of all jobs.
    sparing = state.disk_full or (
        f"it has been changed {REQUESTS_MAX} times" if job.requests >= REQUESTS_MAX else ""
    )
    if sparing and grace_s > now_s / 2:
        kept = duration_text(now_s)
        return [], f"its grace stays {kept}, as a small cut is not recorded now: {sparing}"
    fact = f.GraceShortened(job.id, attempt.number, asked.user, grace_s)
    return [
        fact
    ], f"its grace of {duration_text(now_s)} is cut to {duration_text(grace_s)} from now"


def change(state: State, asked: s.ChangeReceived, now: Instant) -> Decision:
    """Apply all requested changes, or none."""
    job = state.jobs.get(asked.job)
    if job is None:
        return answer(asked.request, unknown_job(asked.job))
    if asked.revisions is not None and job.revision not in asked.revisions:
        return answer(
            asked.request,
            a.Declined(
                a.CHANGED,
                f"job {job.id} has changed since you last read it",
                f"read it again (GET /v1/jobs/{job.id}), and send the ETag of that answer",
            ),
        )
    if job.phase is JobPhase.ENDED:
        return answer(asked.request, _ended(job, "changed"))
    declined = _unchangeable(state, job, asked, now) or _unholdable(job, asked)
    if declined is not None:
        return answer(asked.request, declined)
    facts = [*_changed(job, asked), *_held(job, asked)]
    if facts and job.requests >= REQUESTS_MAX:
        return answer(asked.request, _changed_too_often(job))
    if facts and state.disk_full:
        return answer(asked.request, a.no_room(state.disk_full, "no job is changed"))
    return Decision(facts, [a.Answer(asked.request, a.Changed(job.id, bool(facts)))])


def signal(state: State, asked: s.SignalReceived) -> Decision:
    """Send a signal to the ranks of a running job. The signal itself does not end the job."""
    job = state.jobs.get(asked.job)
    if job is None:
        return answer(asked.request, unknown_job(asked.job))
    if job.phase is JobPhase.ENDED:
        return answer(asked.request, _ended(job, "signalled"))
    if asked.signal in _REFUSED:
        text, hint = _REFUSED[asked.signal]
        declined = a.Declined("signal_refused", text, hint.format(job=job.id))
        return answer(asked.request, declined)
    attempt = job.current
    if attempt is None or job_state(job) is not JobState.RUNNING:
        return answer(
            asked.request,
            a.Declined(
                "not_running",
                f"job {job.id} is {job_state(job).value}: only the ranks of a running job can be "
                "signalled",
                f"to end it: muster cancel {job.id}"
                if attempt is None
                else f"its progress: muster show {job.id}",
            ),
        )
    if job.requests >= REQUESTS_MAX:
        return answer(asked.request, _changed_too_often(job))
    if state.disk_full:
        return answer(asked.request, a.no_room(state.disk_full, "no job is signalled"))
    found = _addressed(job, attempt, asked)
    if isinstance(found, a.Declined):
        return answer(asked.request, found)
    on, rank, nodes = found
    away = tuple(name for name in nodes if state.nodes[name].session is None)
    return Decision(
        [f.SignalRequested(job.id, attempt.number, asked.user, asked.signal, on, rank)],
        [a.Answer(asked.request, a.Signalled(job.id, nodes, away))],
    )


def _addressed(
    job: Job, attempt: Attempt, asked: s.SignalReceived
) -> tuple[NodeName | None, int | None, tuple[NodeName, ...]] | a.Declined:
    """Return the target node (None: all), the target rank (None: all ranks there), and the nodes to
    send to."""
    nodes = tuple(task.node for task in attempt.present if task.state is TaskState.STARTED)
    if asked.node is not None and asked.node not in nodes:
        return a.Declined(
            "not_on_node",
            f"job {job.id} has no ranks on {asked.node}",
            f"it runs on {', '.join(nodes)}",
        )
    on = None if asked.node is None else NodeName(asked.node)
    if asked.rank is None:
        return on, None, nodes if on is None else (on,)
    if not job.spec.elastic and job.spec.rendezvous is Rendezvous.STATIC:
        counts = gang_of(job, attempt).ranks
        home = next((at for at, end in enumerate(accumulate(counts)) if asked.rank < end), None)
        if home is None:
            last = sum(counts) - 1
            text = f"job {job.id} has no rank {asked.rank}"
            return a.Declined("no_such_rank", text, f"its ranks are 0 to {last}")
        where = attempt.tasks[home].node
        if on not in (None, where):
            text = f"rank {asked.rank} of job {job.id} is not on {on}"
            return a.Declined("no_such_rank", text, f"it is on {where}")
        on = where
        if job.spec.launcher is Launcher.NONE:
            # Without a launcher, the command is the only process that Muster starts there.
            return on, None, (on,)
    nodes = nodes if on is None else (on,)
    return on, asked.rank, nodes


def _changed_too_often(job: Job) -> a.Declined:
    return a.Declined(
        a.CHANGED_TOO_OFTEN,
        f"job {job.id} has been changed and signalled {REQUESTS_MAX} times, which is the limit",
        f"each is kept in its history; to end it: muster cancel {job.id}",
    )


def _ended(job: Job, done: str) -> a.Declined:
    return a.Declined(
        "already_ended",
        f"job {job.id} has ended ({job_state(job).value}) and cannot be {done}",
        f"run it again, with changes if needed: muster rerun {job.id} --set KEY=VALUE",
    )


def _unchangeable(
    state: State, job: Job, asked: s.ChangeReceived, now: Instant
) -> a.Declined | None:
    active = job.phase is JobPhase.ACTIVE
    if active and asked.name is not UNSET and asked.name != job.spec.name:
        return a.Declined(
            "not_waiting",
            f"job {job.id} is {job_state(job).value}: its processes know it as {job.spec.name}",
            "the name can be changed while it waits",
        )
    since = state.running.get(job.id)
    limit_s = asked.time_limit_s
    if since is None or limit_s is UNSET or limit_s is None or limit_s == job.spec.time_limit_s:
        return None
    ran_s = now.mono - since
    if limit_s > ran_s:
        return None
    return a.Declined(
        "limit_over",
        f"job {job.id} has run for {duration_text(float(int(ran_s)))}: a time limit of "
        f"{duration_text(limit_s)} would be over already",
        f"to end it now: muster cancel {job.id}",
    )


def _unholdable(job: Job, asked: s.ChangeReceived) -> a.Declined | None:
    match job.phase:
        case JobPhase.ACTIVE if asked.hold is True:
            return a.Declined(
                "not_waiting",
                f"job {job.id} is {job_state(job).value}, and only a waiting job can be held",
                f"to stop it: muster cancel {job.id}; to run it again later: "
                f"muster rerun {job.id}, and hold the new job",
            )
        case JobPhase.HELD:
            return None
        case _ if asked.hold is False and not job.released:
            return a.Declined(
                "not_held",
                f"job {job.id} is not held: it is {job_state(job).value}",
                f"why it does not run: muster explain {job.id}"
                if job.phase is not JobPhase.ACTIVE
                else "",
            )
        case _:
            return None


def _changed(job: Job, asked: s.ChangeReceived) -> list[f.Fact]:
    spec = job.spec
    fact = f.JobChanged(
        job.id,
        asked.user,
        priority=UNSET if asked.priority == spec.priority else asked.priority,
        time_limit_s=UNSET if asked.time_limit_s == spec.time_limit_s else asked.time_limit_s,
        name=UNSET if asked.name == spec.name else asked.name,
    )
    return [fact] if fact.text else []


def _held(job: Job, asked: s.ChangeReceived) -> list[f.Fact]:
    """Return the hold or the release. A repeated request changes nothing."""
    held = job.phase is JobPhase.HELD
    if asked.hold is True and not held:
        return [f.JobHeld(job.id, asked.user, asked.reason)]
    if asked.hold is False and held:
        return [f.JobReleased(job.id, asked.user)]
    return []
