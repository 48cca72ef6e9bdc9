"""Members of a gang whose nodes are silent: the others have to confirm that they vouch no more."""

from __future__ import annotations

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.gangs.commands import fence
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.leases import vouches
from orchestrator.core.model.node import SILENT
from orchestrator.core.model.state import Attempt, Node, State, Task
from orchestrator.core.model.task import OVER


def silent_tasks(state: State, attempt: Attempt) -> list[Task]:
    """The tasks of silent nodes that are not proved over."""
    return [
        task
        for task in attempt.tasks
        if task.state not in OVER and state.nodes[task.node].link in SILENT
    ]


def ask_to_confirm(state: State, attempt: Attempt, node: NodeName | None = None) -> list[a.Effect]:
    """Stop once more what is over of a gang with a silent member (None: on all nodes).

    A node may vouch as long as it holds its task, even an ended one. The stop of tasks that are not
    over is sent in any case.
    """
    stopping = attempt.phase is AttemptPhase.STOPPING
    if not stopping or not vouches(state.jobs[attempt.job], attempt):
        return []
    if not silent_tasks(state, attempt):
        return []
    return [
        a.Send(task.node, session, fence(task.id))
        for task in attempt.tasks
        if node in (None, task.node) and task.state in OVER and task.mute_at is None
        if (session := state.nodes[task.node].session) is not None
    ]


def ask_node_to_confirm(state: State, name: NodeName) -> list[a.Effect]:
    """The same as `ask_to_confirm`, for all attempts of a node that has just connected."""
    holders = {it for node in state.nodes.values() if node.link in SILENT for it in node.holders}
    found = (state.attempt(*holder) for holder in sorted(holders))
    return [it for attempt in found if attempt for it in ask_to_confirm(state, attempt, name)]


def may_vouch_yet(state: State, node: Node) -> bool:
    """True if the agent of a node may vouch for others, even if its own tasks are over.

    An agent vouches until it has stored a stop, and nobody else can confirm that for it.
    """
    return not node.declared_lost and any(
        task.node == node.name and task.mute_at is None and vouches(job, attempt)
        for job in state.jobs.values()
        if (attempt := job.current) is not None
        for task in attempt.tasks
    )


def vouching_ended(state: State, task: Task, now: Instant) -> list[f.Fact]:
    """Return that this task vouches no more, of which its node has just given proof."""
    job = state.jobs[task.job]
    if task.mute_at is not None or not vouches(job, job.attempt(task.attempt)):
        return []
    return [lf.TaskMuted(task.node, task.id, now.mono)]
