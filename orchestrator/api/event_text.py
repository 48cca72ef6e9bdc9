"""Events of a job's history, rendered from journal facts."""

from typing import assert_never

import msgspec

from muster.http.views import EventView
from muster.protocol.outcome import ExitStatus
from muster.protocol.refusal_codes import headline
from muster.protocol.timestamp import timestamp
from muster.spec.serialize import nodes_text
from muster.spec.units import duration_text
from orchestrator.api.redaction import without_secrets_inside
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.model.state import Job
from orchestrator.core.monitoring.idle_gpus import OVER_TEXT
from orchestrator.core.nodes.service_state import service_event
from orchestrator.core.views.display import host_port
from orchestrator.core.webhooks.outbox import host_of


def event_view(job: Job | None, seq: int, at: float, fact: f.Durable) -> EventView:
    """Render a fact. `job` is the job of the fact, and provides the names of its nodes."""
    fields = without_secrets_inside(msgspec.to_builtins(fact))
    fields.pop("type", None)
    return EventView(
        seq=seq,
        at=timestamp(at),
        kind=type(fact).__name__,
        job=getattr(fact, "job", None),
        text=_text(job, fact),
        fields=fields,
        id=event_id(seq, at),
    )


def event_id(seq: int, at: float) -> str:
    """Return the id of an event: its journal position and time. After a restore, another event may
    get the same position, but not with the same microsecond.
    """
    return f"{seq}-{int(at * 1e6):x}"


def _text(job: Job | None, fact: f.Durable) -> str:
    match fact:
        case f.EpochStarted(epoch):
            return f"coordinator started, epoch {epoch}"
        case f.NodeRegistered(node, version=version):
            return f"node {node} registered (agent {version})"
        case (
            sf.NodeDrained()
            | sf.DrainTimed()
            | sf.NodeRemoved()
            | sf.NodeResumed()
            | sf.NodeFaultRecorded()
            | sf.NodeFaultsDecayed()
            | sf.QuarantineSkipped()
            | sf.HardwareReported()
        ):
            return f"node {fact.node} {service_event(fact)}"
        case f.JobSubmitted(_, spec, user, rerun_of=rerun_of):
            again = "" if rerun_of is None else f", job {rerun_of} again"
            return f"submitted by {user}: {spec.name}, {_count(nodes_text(spec), 'node')}{again}"
        case f.CancelRequested(_, user, reason, force=force):
            how = "cancel with force" if force else "cancel"
            return f"{how} requested by {user}" + (f": {reason}" if reason else "")
        case f.JobHeld(_, user, reason):
            return f"held by {user}" + (f": {reason}" if reason else "")
        case f.JobReleased(_, user):
            return f"released by {user}"
        case f.JobChanged(_, user):
            return f"changed by {user}: {fact.text}"
        case f.JobRequeued():
            return "queued again"
        case f.RetryScheduled(_, budget, delay_s):
            return f"will be tried again in {delay_s:g} s ({budget} budget)"
        case nf.WebhookQueued(_, _, event):
            return f"webhooks are to be told: {event.value}"
        case nf.WebhookSettled(_, _, hook, problem):
            where = f"webhook {hook + 1}" if job is None else f"webhook {host_of(job, hook)}"
            return f"{where} was not told: {problem}" if problem else f"{where} was told"
        case f.JobEnded(_, cause):
            return f"ended: {cause.text}"
        case sf.HardwareNoted(_, number, text):
            return f"attempt {number}: {text}"
        case (
            f.AttemptPlaced()
            | f.AttemptArranged()
            | f.AttemptStarted()
            | f.AttemptWarned()
            | f.SignalRequested()
            | f.StopRequested()
            | f.StopForced()
            | f.GraceShortened()
            | f.TrafficJudged()
            | f.HangJudged()
            | f.HangCleared()
            | f.IdleJudged()
            | f.IdleOver()
            | f.AttemptClosed()
        ):
            return f"attempt {fact.attempt}: {_attempt_text(fact)}"
        case (
            f.TaskPrepared()
            | f.TaskRefused()
            | f.TaskArranged()
            | f.TaskListening()
            | f.TaskStarted()
            | f.TaskExited()
            | f.TaskCleaned()
            | f.TaskLost()
            | f.TaskJoined()
            | f.TaskLeft()
            | f.TaskCheckpointed()
            | f.TaskUnreachable()
            | f.TaskReachable()
        ):
            where = f"node {fact.rank}"
            if job is not None:
                where = job.attempts[fact.attempt - 1].tasks[fact.rank].node
            return f"attempt {fact.attempt}, {where}: {_task_text(fact)}"
        case _:
            assert_never(fact)


def _attempt_text(
    fact: f.AttemptPlaced
    | f.AttemptArranged
    | f.AttemptStarted
    | f.AttemptWarned
    | f.SignalRequested
    | f.StopRequested
    | f.StopForced
    | f.GraceShortened
    | f.TrafficJudged
    | f.HangJudged
    | f.HangCleared
    | f.IdleJudged
    | f.IdleOver
    | f.AttemptClosed,
) -> str:
    match fact:
        case f.AttemptPlaced(_, _, nodes):
            return f"placed on {', '.join(nodes)}"
        case f.AttemptArranged(_, _, address, port, _, network):
            over = f", network {network}" if network else ""
            return f"meets at {host_port(address, port)}{over}" if address else "arranged"
        case f.AttemptStarted():
            return "all nodes are ready, starting"
        case f.AttemptWarned():
            return "the ranks are warned that the time limit is near"
        case f.SignalRequested(_, _, user):
            return f"{fact.text} by {user}"
        case f.StopRequested(_, _, cause):
            return f"stopping: {cause.text}"
        case f.GraceShortened(_, _, user, grace_s):
            return f"grace cut to {duration_text(grace_s)} by {user}"
        case f.TrafficJudged(_, _, proof):
            return proof.text
        case f.HangJudged(_, _, verdict):
            return verdict.text
        case f.HangCleared():
            return "it moves again"
        case f.IdleJudged(_, _, text):
            return text
        case f.IdleOver():
            return OVER_TEXT
        case f.StopForced():
            return "grace is over, killing"
        case f.AttemptClosed():
            return "closed, its nodes are free"
        case _:
            assert_never(fact)


def _task_text(
    fact: f.TaskPrepared
    | f.TaskRefused
    | f.TaskArranged
    | f.TaskListening
    | f.TaskStarted
    | f.TaskExited
    | f.TaskCleaned
    | f.TaskLost
    | f.TaskJoined
    | f.TaskLeft
    | f.TaskCheckpointed
    | f.TaskUnreachable
    | f.TaskReachable,
) -> str:
    match fact:
        case f.TaskPrepared():
            return "prepared"
        case f.TaskRefused(_, _, _, refusal):
            return f"refused: {headline(refusal.text)}"
        case f.TaskArranged():
            return "arranged"
        case f.TaskListening():
            return "the rendezvous port listens"
        case f.TaskStarted():
            return "started"
        case f.TaskExited(_, _, _, status):
            return _exit_text(status)
        case f.TaskCleaned():
            return "nothing is left on the node"
        case f.TaskLost(_, _, _, reason):
            return f"lost: {reason}"
        case f.TaskCheckpointed(_, _, _, name):
            return f"saw a checkpoint: {name}"
        case f.TaskJoined():
            return "joins the running gang"
        case f.TaskUnreachable():
            return "cannot be reached, presumed running"
        case f.TaskReachable():
            return "is back"
        case f.TaskLeft(_, _, _, reason):
            return f"the gang goes on without it: {reason}"
        case _:
            assert_never(fact)


def _exit_text(status: ExitStatus) -> str:
    if status.signal is not None:
        return f"ended by signal {status.signal}"
    return "ended, nobody knows how" if status.code is None else f"ended with code {status.code}"


def _count(number: int | str, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
