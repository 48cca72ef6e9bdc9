"""Reports of peers on a silent node: is it gone, or only cut off from the coordinator?

A node that is cut off may go on training, so its silence ends nothing. If its neighbours in a gang
report that its machine no longer answers them either, it is gone as far as the gang is concerned.
That ends the attempt at once. It does not prove that node's task over: see
`orchestrator.core.model.proof`.

A neighbour that was cut off itself had no answers meanwhile. Its reports count once it has polled
its peers again.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.observations.peer_ping import ROUND_S
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.text import named
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import stop_or_leave
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import SILENT, LinkState
from orchestrator.core.model.state import Attempt, Node, State, Task


def apply_peer_reports(state: State, name: NodeName, now: Instant, limits: Limits) -> list[f.Fact]:
    """Return the consequences of peer reports for the tasks of a silent node."""
    return [
        fact
        for task in tasks_on(state, name)
        if is_silent(state, task, now, limits)
        for fact in _gone(state, state.jobs[task.job].attempt(task.attempt), task, now, limits)
    ]


def unknown_at(node: Node, limits: Limits) -> float:
    """Return when a silent node becomes unknown (monotonic seconds).

    If a new coordinator process has received nothing from the node yet, the silence counts from the
    start of the process.
    """
    return node.answered_at + limits.silence_s


def on_peers_unreachable(state: State, task: Task, now: Instant, limits: Limits) -> list[f.Fact]:
    """Handle a report that the task's neighbours stopped or resumed answering it."""
    if not task.silent:
        return []
    attempt = state.jobs[task.job].attempt(task.attempt)
    for other in attempt.present:
        if _address(attempt, other) in task.silent and is_silent(state, other, now, limits):
            found = _gone(state, attempt, other, now, limits)
            if found:
                return found
    return []


def word_timer(state: State, name: NodeName) -> list[a.Effect]:
    """Return the timer for when the reports of a newly connected node count."""
    timer = a.Timer(a.TimerKind.PEER_REPORT, node=name)
    return [a.SetTimer(timer, _counts_from(state.nodes[name]))]


def word_timer_fired(state: State, name: NodeName, now: Instant, limits: Limits) -> Decision:
    """Evaluate the reports of a node that has been connected for long enough."""
    node = state.nodes.get(name)
    if node is None:  # it has been removed
        return Decision()
    if now.mono < _counts_from(node):
        return Decision([], word_timer(state, name))
    words = [on_peers_unreachable(state, task, now, limits) for task in tasks_on(state, name)]
    return Decision([fact for found in words for fact in found])


def silent_one(state: State, attempt: Attempt, cause: Cause, now: Instant, limits: Limits) -> Cause:
    """Return the cause of an attempt in which a rank failed as if a peer had failed.

    If a peer's node is silent, too, that is enough to blame this node as lost.
    """
    gone = [t.node for t in attempt.present if is_silent(state, t, now, limits)]
    if not gone or cause.node in gone:
        return cause
    text = f"{gone[0]} was lost: it has sent nothing, and {cause.text}"
    return replace(
        cause,
        code=CauseCode.NODE_LOST,
        outcome=Outcome.INFRA,
        text=text,
        node=gone[0],
        rank=None,
        exit=None,
        node_fault=True,
        kind="",
    )


def is_silent(state: State, task: Task, now: Instant, limits: Limits) -> bool:
    """True if the task's node has been silent for so long that it is unknown."""
    node = state.nodes[task.node]
    if now.mono < state.judged_from:
        return False
    return node.link in SILENT and now.mono >= unknown_at(node, limits)


def _gone(state: State, attempt: Attempt, task: Task, now: Instant, limits: Limits) -> list[f.Fact]:
    """Return the end of the attempt, if the neighbours of a silent node confirm that it is gone."""
    job = state.jobs[task.job]
    if attempt.phase is not AttemptPhase.RUNNING or not task.present or task.exit is not None:
        return []
    address = _address(attempt, task)
    watchers = [
        other for other in _watchers(attempt, task) if _is_heeded(state.nodes[other.node], now)
    ]
    witnesses = [other.node for other in watchers if address in other.silent]
    if not witnesses or 2 * len(witnesses) < len(watchers):
        return []
    get = "gets" if len(witnesses) == 1 else "get"
    text = (
        f"{task.node} was lost: it has sent nothing for {limits.silence_s:g} s, and "
        f"{named(witnesses)} no longer {get} an answer from {address}"
    )
    cause = Cause(CauseCode.NODE_LOST, Outcome.INFRA, text, node=task.node, node_fault=True)
    return [*stop_or_leave(job, attempt, task, cause)]


def _is_heeded(node: Node, now: Instant) -> bool:
    return node.link is LinkState.CONNECTED and now.mono >= _counts_from(node)


def _counts_from(node: Node) -> float:
    """Return when a node's reports on its neighbours count (monotonic seconds).

    From then on, they date from after its connection.
    """
    return node.connected_at + ROUND_S


def _watchers(attempt: Attempt, task: Task) -> list[Task]:
    """The tasks whose agents poll the task's machine: see `agent.core.peers`."""
    others = [other for other in attempt.present if other is not task]
    if task.rank == 0:
        return others
    around = {task.rank - 1, (task.rank + 1) % len(attempt.tasks)}
    return [other for other in others if other.rank in around or task.joined or other.joined]


def _address(attempt: Attempt, task: Task) -> str:
    if task.endpoint is not None:
        return task.endpoint.address
    if task.rank < len(attempt.endpoints):
        return attempt.endpoints[task.rank].address
    return ""
