"""Nodes after a restore: their hello settles them, or an operator declares them lost.

Tasks of attempts that the restored journal lacks are fenced like any unknown task. Here is the
proof that they are over: the agent's report, its next hello without them, or an operator's word.
No lease is one, as nobody knows which they have. Nor is another boot id than the journal's: the
task may have begun in the new boot. The agent itself reports tasks of an earlier boot as over.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import BadId, NodeName, TaskId, parse_task_id
from muster.protocol.link.control_channel import Hello, TaskReport
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import restored as rf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import lost, stop, stop_or_leave
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.gangs.silent_members import may_vouch_yet
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.nodes.drains import unknown_node

UNKNOWN_MAX: Final = 64
"""Unknown tasks of a node that count: more than a node runs at one time."""
_BY_REQUEST: Final = frozenset({"stop", "kill"})
_STARTING: Final = frozenset({AttemptPhase.PREPARING, AttemptPhase.ARRANGING})


def unknown_tasks_held(state: State, hello: Hello) -> list[f.Fact]:
    """Return the fact on the unknown tasks that a node has now, if it matters to placing."""
    found = {report.task for report in hello.tasks if _is_unknown(state, hello.node, report)}
    if not found and not state.unknown.on(hello.node) and hello.node not in state.awaited:
        return []
    # Tasks that hold up a job come first, so that invented ones cannot displace them.
    kept = sorted(found, key=lambda task: (not _holds_a_job(state, task), task))[:UNKNOWN_MAX]
    return [lf.UnknownTasksHeld(hello.node, tuple(sorted(kept)))]


def unknown_task_over(state: State, node: NodeName, report: TaskReport) -> list[f.Fact]:
    """Return the fact that an unknown task is over, if this report proves it."""
    if report.state is not TaskState.CLEANED or report.task not in state.unknown.on(node):
        return []
    return [lf.UnknownTaskOver(node, report.task)]


def settled(state: State, node: NodeName) -> list[f.Fact]:
    """Return the fact that an awaited node has said hello and has no unknown task."""
    if node not in state.answered or state.unknown.on(node):
        return []
    return [rf.RestoredNodeSettled(node)]


def ends_half_begun(state: State) -> list[f.Fact]:
    """Return the end of attempts that were being started when the backup was made.

    They may have started since, on a port and with a plan that the journal lacks, so that they can
    neither be adopted nor be started.
    """
    found: list[f.Fact] = []
    for job in state.jobs.values():
        attempt = job.current
        starting = attempt is not None and attempt.phase in _STARTING
        if attempt is not None and starting and job.is_restored(attempt.number):
            text = "the journal was restored from a backup that was made while this attempt started"
            found.append(stop(attempt, Cause(CauseCode.RESTORED, Outcome.INFRA, text)))
    return found


def gone_since_backup(state: State, task: Task) -> list[f.Fact]:
    """Return the end of an attempt of before the restore whose node does not have it any more.

    Its end is in the part of the journal that is lost, so that no node is to blame.
    """
    job = state.jobs[task.job]
    text = f"the journal was restored from a backup, and {task.node} has no part of this attempt"
    cause = Cause(CauseCode.RESTORED, Outcome.INFRA, text, node=task.node)
    return [*stop_or_leave(job, job.attempt(task.attempt), task, cause)]


def stopped_since_backup(
    job: Job, attempt: Attempt, task: Task, report: TaskReport
) -> list[f.StopRequested | f.TaskLeft]:
    """Return the end of an attempt that was stopped in the part of the journal that is lost.

    Its ranks may have exited with 0, which is no success.
    """
    if not job.is_restored(attempt.number) or report.stopped_by not in _BY_REQUEST:
        return []
    text = f"the journal was restored from a backup, and {task.node} has since stopped the task"
    cause = Cause(CauseCode.RESTORED, Outcome.INFRA, text, node=task.node)
    return stop_or_leave(job, attempt, task, cause)


def declare_lost(state: State, asked: s.LostReceived) -> Decision:
    """Take an operator's word that nothing runs any more on a node that is not connected."""
    name, node = asked.node, state.nodes.get(asked.node)
    if node is None and name not in state.awaited:
        return Decision([], [a.Answer(asked.request, unknown_node(name))])
    if node is not None and node.session is not None:
        declined = a.Declined(
            "node_connected",
            f"{name} is connected, so the coordinator knows what runs there",
            f"to end its jobs and take it out of service: muster node drain {name} --now",
        )
        return Decision([], [a.Answer(asked.request, declined)])
    if state.disk_full:
        declined = a.no_room(state.disk_full, "no node is declared lost")
        return Decision([], [a.Answer(asked.request, declined)])
    matters = (
        name in state.awaited
        or bool(state.unknown.on(name))
        or (node is not None and node.link is not LinkState.LOST)
        or bool(tasks_on(state, name))
        or (node is not None and may_vouch_yet(state, node))
    )
    facts: list[f.Fact] = [rf.NodeDeclaredLost(name, asked.user)] if matters else []
    return Decision(facts, [a.Answer(asked.request, a.NodeServiceChanged(name, matters))])


def react_to_declared_lost(state: State, fact: rf.NodeDeclaredLost) -> list[f.Fact]:
    """Return the end of every task on the node."""
    reason = f"{fact.user} declared {fact.node} lost"
    return [lost(task, reason, TaskProof.DECLARED) for task in tasks_on(state, fact.node)]


def _holds_a_job(state: State, task: TaskId) -> bool:
    """True if a job that has not ended waits for the end of this unknown task."""
    number, _, _ = parse_task_id(task)
    job = state.jobs.get(number)
    return job is not None and job.phase is not JobPhase.ENDED and number < state.first_of_epoch


def _is_unknown(state: State, node: NodeName, report: TaskReport) -> bool:
    """True if a node has a task that the journal lacks, or has on another node."""
    if report.state is TaskState.CLEANED:
        return False
    try:
        task = state.task(report.task)
    except BadId:
        return False
    return task is None or task.node != node
