"""Liveness of nodes: when a silent node counts as unreachable, and when leases end its tasks.

A node may be silent although it runs, so that its silence proves nothing: a task is over only by
one of the proofs in `orchestrator.core.model.proof`. If the coordinator itself was stopped or
suspended, messages of the agents wait unread: no node is judged before one full round.
"""

from __future__ import annotations

import math

from muster.protocol.ids import NodeName
from muster.protocol.instant import ROUNDING_S, Instant
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import lost
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.model.leases import margin_s, over_at
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import SILENT, LinkState
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Node, State, Task
from orchestrator.core.nodes.peer_reports import apply_peer_reports, unknown_at


def node_timer_fired(state: State, name: NodeName, now: Instant, limits: Limits) -> Decision:
    """Handle the one timer of a node, which watches its silence and the leases of its tasks."""
    node, timer = state.nodes.get(name), _timer(name)
    due = None if node is None else _due(state, node, limits)
    if node is None or due is None:  # it may have been removed
        return Decision()
    due = max(due, state.judged_from)
    if now.mono < due:
        found = apply_peer_reports(state, name, now, limits)
        return Decision(found, _timer_at(node, _sooner(node, due, now, limits)))
    if now.mono > due + limits.heartbeat_s:
        # Only a process that was not running is so late.
        until = now.mono + limits.silence_s
        return Decision([cf.LivenessPaused(until)], [a.SetTimer(timer, until)])
    if node.link is LinkState.CONNECTED and node.session is not None:
        why = f"no message for {limits.silence_s:g} s"
        return Decision(
            [lf.NodeDisconnected(node.name, node.session)], [a.CloseSession(node.session, why)]
        )
    return _silent_for_long(state, node, now, limits)


def silent_timer(state: State, node: Node, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timer for what the coordinator may conclude next about an unreachable node."""
    due = _due(state, node, limits)
    if due is None:
        return []
    return _timer_at(node, max(now.mono, _sooner(node, due, now, limits)))


def timers_of_the_silent(state: State) -> list[a.Effect]:
    """Return the timers of silent nodes after a pause of liveness."""
    return [
        a.SetTimer(_timer(node.name), state.judged_from)
        for node in state.nodes.values()
        if node.link in SILENT
    ]


def keeps_until(state: State, node: Node) -> float | None:
    """Return when the last task that a silent node may run has ended, in monotonic seconds.

    Returns None if the node has no tasks, or if silence does not prove one of them over.
    """
    until = max((_over_at(state, task) for task in tasks_on(state, node.name)), default=math.inf)
    return None if math.isinf(until) else until


def _silent_for_long(state: State, node: Node, now: Instant, limits: Limits) -> Decision:
    """Return the end of the tasks whose leases are over, and of the wait for the node itself."""
    tasks = [(task, _over_at(state, task)) for task in tasks_on(state, node.name)]
    over = [task for task, at in tasks if at <= now.mono + ROUNDING_S]
    later = [at for task, at in tasks if task not in over]
    reason = f"{node.name} was silent beyond the lease"
    facts: list[f.Fact] = [lost(it, reason, TaskProof.LEASE) for it in over]
    given_up_at = _given_up_at(node, limits)
    if given_up_at <= now.mono + ROUNDING_S:
        facts.append(lf.NodeGivenUp(node.name))
    else:
        later.append(given_up_at)
    return Decision(facts, _timer_at(node, min(later, default=math.inf)))


def _due(state: State, node: Node, limits: Limits) -> float | None:
    match node.link:
        case LinkState.CONNECTED:
            return node.heard_at + limits.silence_s
        case LinkState.SUSPECT | LinkState.LOST:
            held = [_over_at(state, task) for task in tasks_on(state, node.name)]
            return min(*held, _given_up_at(node, limits), math.inf)
        case LinkState.OFFLINE:
            return None


def _given_up_at(node: Node, limits: Limits) -> float:
    if node.link is LinkState.LOST:
        return math.inf
    return node.answered_at + limits.lease_s + margin_s(limits.lease_s)


def _over_at(state: State, task: Task) -> float:
    at = over_at(state, state.jobs[task.job].attempt(task.attempt), task)
    return math.inf if at is None else at


def _sooner(node: Node, due: float, now: Instant, limits: Limits) -> float:
    """Return `due`, or the earlier time at which reports of the node's peers count."""
    unknown = unknown_at(node, limits)
    return min(due, unknown) if now.mono < unknown else due


def _timer_at(node: Node, at: float) -> list[a.Effect]:
    return [] if math.isinf(at) else [a.SetTimer(_timer(node.name), at)]


def _timer(name: NodeName) -> a.Timer:
    return a.Timer(a.TimerKind.NODE, node=name)
