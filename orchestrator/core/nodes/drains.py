"""Drains: requests to take nodes out of service and back, and the effects on their jobs.

A drained node gets no jobs. Attempts that are being prepared there are rolled back. Running jobs
continue to their end or to the deadline of the drain. A job that has to leave is retried elsewhere,
at no cost to its retry budgets.
"""

from __future__ import annotations

from typing import Final, assert_never

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.decision import Decision, answer
from orchestrator.core.failures.stops import stop, stop_or_leave
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.clocks import clock_warning
from orchestrator.core.model.node import Drain, LinkState, drained_by
from orchestrator.core.model.state import Node, State, Task
from orchestrator.core.model.task import reached
from orchestrator.core.nodes.hardware import hardware_problems
from orchestrator.core.nodes.unkillable import survivor_problems
from orchestrator.core.nodes.warnings import claim_warning
from orchestrator.core.scheduling.reasons import jobs_named

_PARTS: Final = 16
_LEAST_S: Final = 1.0
"""The rest of a deadline is recorded `_PARTS` times, but at most once in this many seconds."""


def drain(state: State, asked: s.DrainReceived) -> Decision:
    """Drain a node. A repeated request replaces the drain; an identical one changes nothing.

    While the disk is full, each node can be drained once, and nothing else is changed.
    """
    node = state.nodes.get(asked.node)
    if node is None:
        return answer(asked.request, unknown_node(asked.node))
    before, fact = (
        node.drain,
        sf.NodeDrained(
            node.name,
            asked.user,
            asked.reason,
            asked.deadline_s,
            after_checkpoint=asked.after_checkpoint,
        ),
    )
    # A new deadline counts from now, so such a request is never identical.
    same = before is not None and not asked.deadline_s and _says(before) == _says(fact)
    if before is not None and not same and state.disk_full:
        return answer(asked.request, a.no_room(state.disk_full, "no drain is changed"))
    return Decision(
        [] if same else [fact], [a.Answer(asked.request, a.NodeServiceChanged(node.name, not same))]
    )


def resume(state: State, asked: s.ResumeReceived, now: Instant) -> Decision:
    """Put a node back into service, unless a check finds problems."""
    node = state.nodes.get(asked.node)
    if node is None:
        return answer(asked.request, unknown_node(asked.node))
    if node.in_service and not node.faults:
        return answer(asked.request, a.NodeServiceChanged(node.name, anything=False))
    found = resume_problems(state, node, now) if asked.check else ()
    if found:
        return answer(asked.request, unfit_to_resume(node, found))
    if state.disk_full:
        return answer(asked.request, a.no_room(state.disk_full, "no node is resumed"))
    fact = sf.NodeResumed(node.name, asked.user)
    return Decision(
        [fact], [a.Answer(asked.request, a.NodeServiceChanged(node.name, anything=True))]
    )


def remove(state: State, asked: s.RemoveReceived) -> Decision:
    """Forget a node that is gone and holds nothing of a job."""
    node = state.nodes.get(asked.node)
    if node is None:
        if asked.node not in state.enrolment.nodes:
            return answer(asked.request, unknown_node(asked.node))
        # It has joined, and never connected.
        return _removed(state, asked)
    if node.session is not None or node.link is LinkState.CONNECTED:
        declined = a.Declined(
            "node_connected",
            f"{node.name} is connected, and would come back at once",
            f"stop its agent there (systemctl disable --now muster-agent), then: muster node "
            f"remove {node.name}",
        )
        return answer(asked.request, declined)
    if node.holders:
        held = jobs_named(node.holders)
        declined = a.Declined(
            "node_busy",
            f"{node.name} cannot be reached, and may still run {held}",
            f"start its agent; if it is gone for good, first: muster node lost {node.name}",
        )
        return answer(asked.request, declined)
    ending = [
        (job.id, job.current.number)
        for job in state.jobs.values()
        if job.current is not None and any(it.node == node.name for it in job.current.present)
    ]
    if ending:
        declined = a.Declined(
            "node_busy",
            f"{node.name} belongs to {jobs_named(ending)}, which has not ended on another node",
            "wait until the job has ended: muster show says what it waits for",
        )
        return answer(asked.request, declined)
    if node.name in state.awaited or state.unknown.on(node.name):
        declined = a.Declined(
            "node_awaited",
            f"{node.name} has not answered after the restore, and may still run a job",
            f"start its agent; if nothing of a job runs there: muster node lost {node.name}",
        )
        return answer(asked.request, declined)
    return _removed(state, asked)


def _removed(state: State, asked: s.RemoveReceived) -> Decision:
    if state.disk_full:
        return answer(asked.request, a.no_room(state.disk_full, "no node is removed"))
    fact = sf.NodeRemoved(asked.node, asked.user)
    return Decision(
        [fact], [a.Answer(asked.request, a.NodeServiceChanged(asked.node, anything=True))]
    )


def resume_problems(state: State, node: Node, now: Instant) -> tuple[str, ...]:
    """Return the known problems of a node, as sentences.

    Its agent reports changes of RDMA ports and GPUs as they happen.
    """
    if node.link is not LinkState.CONNECTED:
        return (f"{node.name} is not connected: check that its agent runs",)
    left = [
        f"processes or files of job {job} are still there"
        for job, number in sorted(node.holders)
        if state.jobs[job].attempt(number).phase is AttemptPhase.STOPPING
    ]
    gpus = [f"GPU {gpu.pci}: {gpu.fault}" for gpu in node.inventory.devices if gpu.fault]
    ports = [port.text for port in node.ports if port.down]
    lost = hardware_problems(node)
    held = survivor_problems(node)
    found = (clock_warning(node), claim_warning(node, now), *left, *held, *gpus, *lost, *ports)
    return tuple(filter(None, found))


def unfit_to_resume(node: Node, found: tuple[str, ...]) -> a.Declined:
    return a.Declined(
        "check_failed",
        f"{node.name} stays out of service: {'; '.join(found)}",
        f"fix that and resume it again, or skip the checks: "
        f"muster node resume {node.name} --no-check",
    )


def unknown_node(name: NodeName) -> a.Declined:
    return a.Declined(
        a.UNKNOWN_NODE, f"there is no node {name!r}", "list the nodes with: muster nodes"
    )


def react_to_drain(state: State, fact: sf.NodeDrained | sf.DrainTimed, now: Instant) -> Decision:
    """Return the consequences for the jobs on the node."""
    node = state.nodes[fact.node]
    assert node.drain is not None
    return Decision(_leave(state, node, node.drain), drain_timer(node, now))


def drain_timer(node: Node, now: Instant) -> list[a.Effect]:
    """Return the timer for the next record of the remaining deadline, or for its end."""
    drain = node.drain
    if drain is None or not drain.left_s:
        return []
    timer = a.Timer(a.TimerKind.DRAIN, node=node.name, attempt=drain.number)
    return [a.SetTimer(timer, now.mono + _step_s(drain))]


def drain_timer_fired(state: State, timer: a.Timer) -> Decision:
    node = state.nodes.get(timer.node)
    drain = None if node is None else node.drain
    if node is None or drain is None or drain.number != timer.attempt or not drain.left_s:
        return Decision()
    return Decision([sf.DrainTimed(node.name, max(0.0, drain.left_s - _step_s(drain)))])


def leaves_after_checkpoint(state: State, fact: f.TaskCheckpointed) -> list[f.Fact]:
    """Let a gang leave draining nodes, because it has written a checkpoint.

    Only nodes drained with `after_checkpoint` are left.
    """
    attempt = state.jobs[fact.job].attempt(fact.attempt)
    ends = attempt.tasks[fact.rank].state is not TaskState.STARTED
    if attempt.phase is not AttemptPhase.RUNNING or ends:
        # The attempt or the task is ending already.
        return []
    job = state.jobs[fact.job]
    found: list[f.Fact] = []
    staying = [t for t in attempt.present if reached(t.state, TaskState.STARTED)]
    for task in attempt.present:
        node = state.nodes[task.node]
        if node.drain is None or not node.drain.after_checkpoint:
            continue
        cause = drained_cause(node, node.drain)
        staying = [one for one in staying if one is not task]
        gone = _end(state, task, cause, over=True, force=False)
        if len(staying) < job.spec.nodes or any(type(it) is f.StopRequested for it in gone):
            return [stop(attempt, cause)]
        found += gone
    return found


def drained_cause(node: Node, drain: Drain) -> Cause:
    """The cause of an attempt that has to leave a drained node."""
    text = f"{node.name} is {drained_by(drain)}"
    return Cause(CauseCode.DRAINED, Outcome.INFRA, text, node=node.name)


def _step_s(drain: Drain) -> float:
    left_s = drain.left_s or 0.0
    step_s = min(left_s, max((drain.deadline_s or 0.0) / _PARTS, _LEAST_S))
    # Otherwise rounding could leave a tiny last step.
    return left_s if left_s - step_s < _LEAST_S / 2 else step_s


def _leave(state: State, node: Node, drain: Drain) -> list[f.Fact]:
    over = drain.left_s is not None and drain.left_s <= 0
    now = over and drain.deadline_s == 0
    cause = drained_cause(node, drain)
    return [
        fact
        for task in tasks_on(state, node.name)
        for fact in _end(state, task, cause, over=over, force=now)
    ]


def _end(state: State, task: Task, cause: Cause, *, over: bool, force: bool) -> list[f.Fact]:
    job = state.jobs[task.job]
    attempt = job.attempt(task.attempt)
    forced: list[f.Fact] = [f.StopForced(job.id, attempt.number)] if force else []
    match attempt.phase:
        case AttemptPhase.PREPARING | AttemptPhase.ARRANGING:
            return [stop(attempt, cause)]
        case AttemptPhase.RUNNING:
            starting = task.joined and not reached(task.state, TaskState.STARTED)
            if not task.present or not (over or starting):
                return []
            gone = stop_or_leave(job, attempt, task, cause, force=force)
            return [*gone, *forced] if type(gone[0]) is f.StopRequested else [*gone]
        case AttemptPhase.STOPPING:
            return [] if attempt.forced else forced
        case AttemptPhase.CLOSED:
            return []
        case _:
            assert_never(attempt.phase)


def _says(what: Drain | sf.NodeDrained) -> tuple[str, str, float | None, bool, bool]:
    return what.user, what.reason, what.deadline_s, bool(what.jobs), what.after_checkpoint
