"""A fact of the journal as a line of a job's history."""

from typing import assert_never

import msgspec

from muster.protocol.http import EventView
from muster.protocol.outcome import ExitStatus
from muster.protocol.timestamp import timestamp
from muster.spec.render import nodes_text
from muster.spec.units import duration_text
from orchestrator.core import facts as f
from orchestrator.core.display import host_port
from orchestrator.core.state import State


def event_view(state: State, seq: int, at: float, fact: f.Durable) -> EventView:
    """`state` knows the nodes' names; the fact is history."""
    fields = msgspec.to_builtins(fact)
    fields.pop("type", None)
    return EventView(
        seq=seq,
        at=timestamp(at),
        kind=type(fact).__name__,
        job=getattr(fact, "job", None),
        text=_text(state, fact),
        fields=fields,
    )


def _text(state: State, fact: f.Durable) -> str:
    match fact:
        case f.EpochStarted(epoch):
            return f"coordinator started, epoch {epoch}"
        case f.NodeRegistered(node, version=version):
            return f"node {node} registered (agent {version})"
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
        case f.JobEnded(_, cause):
            return f"ended: {cause.text}"
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
        ):
            attempt = state.attempt(fact.job, fact.attempt)
            where = f"node {fact.rank}" if attempt is None else attempt.tasks[fact.rank].node
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
    | f.TaskLeft,
) -> str:
    match fact:
        case f.TaskPrepared():
            return "prepared"
        case f.TaskRefused(_, _, _, refusal):
            return f"refused: {refusal.text}"
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
        case f.TaskJoined():
            return "joins the running gang"
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
