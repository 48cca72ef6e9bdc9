"""Order of the queues: by priority, then by submission, within each pool.

If the head of a queue cannot start, it holds back the jobs behind it. Otherwise small jobs would
starve a large gang.
"""

from __future__ import annotations

from typing import assert_never

from muster.spec.model import JobSpec
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.jobs import AttemptPlaced
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.gpus import given, may_have_room
from orchestrator.core.scheduling.placement import Waiting, never_fits, place, why_there


def may_place(state: State, fact: f.Fact) -> bool:
    """Whether this fact may let a gang be placed that could not be placed before.

    Such a fact frees a node, or changes a queue, a node, its link, the networks or the disk space.
    Other facts need no placement pass.
    """
    # The most frequent facts come first, as in `apply` and `react`: a match tests case by case.
    match fact:
        case f.TaskCleaned() | f.TaskLost():
            # All other tasks keep their nodes until their attempt is closed.
            attempt = state.attempt(fact.job, fact.attempt)
            return attempt is not None and not attempt.tasks[fact.rank].present
        case (
            f.TaskPrepared()
            | f.TaskArranged()
            | f.TaskListening()
            | f.TaskStarted()
            | f.TaskExited()
            | f.NodeHeard()
            | f.PortsReported()
            | f.PeersReported()
            | f.DisksReported()
            | f.SurvivorsReported()
            | f.TrafficMeasured()
            | f.TrafficJudged()
            | f.TaskCheckpointed()
            | hf.ActivityMeasured()
            | hf.StackDumpBegun()
            | hf.StackDumpJoined()
            | hf.StacksReported()
            | hf.StackDumpEnded()
            | hf.HangSuspected()
            | hf.HangDismissed()
            | hf.HangJudged()
            | hf.HangCleared()
            | idf.GpusReported()
            | idf.IdleTimed()
            | idf.IdleJudged()
            | idf.IdleOver()
            | f.DuplicateNameSeen()
            | f.NodeSynced()
            | f.LivenessPaused()
            | f.MassOutageDeclared()
            | f.MassOutageCleared()
            | f.FailureSuspected()
            | f.RunTimed()
            | f.CancelRequested()
            | f.RetryScheduled()
            | f.AttemptArranged()
            | f.AttemptStarted()
            | f.AttemptWarned()
            | f.SignalRequested()
            | f.StopRequested()
            | f.StopForced()
            | f.GraceShortened()
            | f.TaskUnreachable()
            | f.TaskReachable()
            | f.TaskJoined()
            | f.TaskRefused()
            | f.JobForgotten()
            | nf.WebhookQueued()
            | nf.WebhookSettled()
            | nf.WebhookFailed()
            | sf.DrainTimed()
            | sf.NodeFaultRecorded()
            | sf.NodeFaultsDecayed()
            | sf.QuarantineSkipped()
            | sf.HardwareReported()
            | sf.HardwareNoted()
        ):
            return False
        case (
            f.EpochStarted()
            | f.NodeRegistered()
            | f.NodeDescribed()
            | f.NodeConnected()
            | f.NodeDisconnected()
            | f.LeaseExtended()
            | f.NodeLeaseExpired()
            | f.SpaceChanged()
            | f.JobSubmitted()
            | f.JobRequeued()
            | f.JobHeld()
            | f.JobReleased()
            | f.JobChanged()
            | f.JobEnded()
            | f.AttemptPlaced()
            | f.AttemptClosed()
            | f.TaskLeft()
            | sf.NodeDrained()
            | sf.NodeRemoved()
            | sf.NodeResumed()
        ):
            return True
        case _:
            assert_never(fact)


def next_placement(state: State) -> AttemptPlaced | None:
    """The next gang that can be placed now, or None.

    Once None, it stays None until a fact for which `may_place` is true.
    """
    if state.disk_full:
        return None
    for queue in state.queues.values():
        if not queue:
            continue
        job = state.jobs[queue[0][1]]
        if not _enough_free(state, job.spec):
            continue
        nodes = place(state, job)
        if not isinstance(nodes, Waiting):
            why = why_there(state, job, nodes)
            gpus = tuple(given(state, job.spec, name) for name in nodes)
            return AttemptPlaced(
                job.id, len(job.attempts) + 1, nodes, why, gpus if any(gpus) else ()
            )
    return None


def _enough_free(state: State, spec: JobSpec) -> bool:
    """Whether enough nodes may have room, without looking at whether they fit.

    A quick check: with a full cluster, whose nodes reconnect one by one after a restart, it saves
    the placement.
    """
    free = 0
    for node in state.nodes.values():
        if node.link is not LinkState.CONNECTED or not node.in_service:
            continue
        if not node.holders or may_have_room(spec, node):
            free += 1
            if free >= spec.nodes:
                return True
    return False


def why_waiting(state: State, job: Job) -> str:
    """A sentence on why a queued job has not been placed, from the scheduler's own reasons."""
    if state.disk_full:
        return f"nothing is started: {state.disk_full}"
    queue = state.queues[job.spec.pool]
    place_in_queue = queue.index((-job.spec.priority, job.id))
    if place_in_queue > 0:
        head = state.jobs[queue[0][1]]
        way_on = f"it is held (muster hold {head.id}), cancelled, or fits again"
        why = _why_not(state, head, f"; the others wait until {way_on}")
        because = f", which {why}" if why else ""
        return (
            f"{place_in_queue} ahead in pool {job.spec.pool}; first is job {head.id} "
            f"(priority {head.spec.priority}){because}"
        )
    return _why_not(state, job) or "is being placed"


def _why_not(state: State, job: Job, then: str = "") -> str:
    """Why the head of a queue has no nodes; empty if it could have some.

    Appends `then` if the known nodes can never hold the job.
    """
    found = place(state, job)
    if not isinstance(found, Waiting):
        return ""
    impossible = never_fits(state, job.spec)
    return found.text if impossible is None else f"cannot start: {impossible}{then}"
