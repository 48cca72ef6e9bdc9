"""Liveness of nodes: when a silent node counts as unreachable, and when its tasks count as lost.

A node may be silent although it runs. If the coordinator itself was stopped or suspended, messages
of the agents wait unread: no node is judged before one full round. If most agents fall silent at
once, the coordinator is more likely cut off itself. This is a mass outage: nothing is declared lost
for a long while, so that jobs which continue or end well are not run again. Both are safe, as
waiting longer never weakens the fencing.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import NodeName
from muster.protocol.instant import ROUNDING_S, Instant
from muster.spec.units import duration_text
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.gangs.leases import gone_at
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes.peer_reports import apply_peer_reports, unknown_at

MANY: Final = 0.55
"""A mass outage needs more than this share of the connected agents."""
FEWEST: Final = 2
ROUNDS: Final = 2
"""Nodes fell silent at once if they did so within this many silence periods of each other."""


def node_timer_fired(state: State, name: NodeName, now: Instant, limits: Limits) -> Decision:
    """Handle the one timer of a node, which watches its silence and its leases."""
    node, timer = state.nodes.get(name), _timer(name)
    due = None if node is None else _due(state, node, limits)
    if node is None or due is None:  # it may have been removed
        return Decision()
    due = max(due, state.judged_from)
    if node.link is LinkState.SUSPECT and state.mass_outage is not None:
        due = max(due, state.mass_outage.at + state.mass_outage.lasts_s)
    if now.mono < due:
        found = apply_peer_reports(state, name, now, limits)
        return Decision(found, [a.SetTimer(timer, _sooner(node, due, now, limits))])
    if now.mono > due + limits.heartbeat_s:
        # Only a process that was not running is so late.
        until = now.mono + limits.silence_s
        return Decision([cf.LivenessPaused(until)], [a.SetTimer(timer, until)])
    if node.link is LinkState.CONNECTED and node.session is not None:
        why = f"no message for {limits.silence_s:g} s"
        return Decision(
            [lf.NodeDisconnected(node.name, node.session)], [a.CloseSession(node.session, why)]
        )
    return _lost(state, node, now, limits)


def silent_timer(state: State, node: Node, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timer until a task on an unreachable node can be declared lost."""
    due = _due(state, node, limits)
    if due is None:
        return []
    return [a.SetTimer(_timer(node.name), max(now.mono, _sooner(node, due, now, limits)))]


def released(state: State, now: Instant, limits: Limits) -> list[f.Fact]:
    """End the mass outage if few enough agents are away.

    Called when an agent is back or given up.
    """
    if state.mass_outage is None:
        return []
    away = [node for node in state.nodes.values() if node.link is LinkState.SUSPECT]
    if len(away) > MANY * (len(away) + _connected(state)):
        return []
    return [cf.MassOutageCleared(now.mono + limits.silence_s)]


def timers_of_the_silent(state: State) -> list[a.Effect]:
    """Return the timers of silent nodes after a pause of liveness."""
    return [
        a.SetTimer(_timer(node.name), state.judged_from)
        for node in state.nodes.values()
        if node.link is LinkState.SUSPECT
    ]


def mass_outage_text(state: State) -> str:
    """The warning for users during a mass outage, else ""."""
    outage = state.mass_outage
    if outage is None:
        return ""
    return (
        f"{outage.gone} of {outage.of} agents fell silent at once, so the coordinator may be cut "
        f"off: none of them is declared lost before {duration_text(outage.lasts_s)} have passed"
    )


def keeps_until(state: State, node: Node, limits: Limits) -> float | None:
    """Return when the last task that a silent node may run has ended, in monotonic seconds.

    Returns None if the node has no tasks.
    """
    held = [gone_at(state, node, task, limits) for task in tasks_on(state, node.name)]
    return max(held, default=None)


def _lost(state: State, node: Node, now: Instant, limits: Limits) -> Decision:
    timer = _timer(node.name)
    gone = _fell_silent_together(state, node, limits)
    if state.mass_outage is None and gone is not None and limits.mass_outage_s > 0:
        until = now.mono + limits.mass_outage_s
        mass_outage = cf.MassOutageDeclared(now.mono, limits.mass_outage_s, *gone)
        return Decision([mass_outage], [a.SetTimer(timer, until)])
    tasks = tasks_on(state, node.name)
    lost = [task for task in tasks if gone_at(state, node, task, limits) <= now.mono + ROUNDING_S]
    decision = Decision()
    if len(lost) == len(tasks) and node.lease_until <= now.mono + ROUNDING_S:
        decision.facts.append(lf.NodeLeaseExpired(node.name))
    else:
        later = [gone_at(state, node, task, limits) for task in tasks if task not in lost] or [
            node.lease_until
        ]
        decision.effects.append(a.SetTimer(timer, min(later)))
    decision.facts += [
        f.TaskLost(t.job, t.attempt, t.rank, f"{t.node} was silent beyond its lease") for t in lost
    ]
    return decision


def _due(state: State, node: Node, limits: Limits) -> float | None:
    match node.link:
        case LinkState.CONNECTED:
            return node.heard_at + limits.silence_s
        case LinkState.SUSPECT:
            held = [gone_at(state, node, task, limits) for task in tasks_on(state, node.name)]
            return min(held, default=node.lease_until)
        case LinkState.OFFLINE | LinkState.LOST:
            return None


def _sooner(node: Node, due: float, now: Instant, limits: Limits) -> float:
    """Return `due`, or the earlier time at which reports of the node's peers count."""
    unknown = unknown_at(node, limits)
    return min(due, unknown) if now.mono < unknown else due


def _fell_silent_together(state: State, node: Node, limits: Limits) -> tuple[int, int] | None:
    """Return how many agents fell silent together with this one, and of how many.

    Returns None if they are not most of them.
    """
    away = [other for other in state.nodes.values() if other.link is LinkState.SUSPECT]
    window_s = ROUNDS * limits.silence_s
    gone = sum(abs(other.heard_at - node.heard_at) <= window_s for other in away)
    there = len(away) + _connected(state)
    return (gone, there) if gone >= FEWEST and gone > MANY * there else None


def _connected(state: State) -> int:
    return sum(node.link is LinkState.CONNECTED for node in state.nodes.values())


def _timer(name: NodeName) -> a.Timer:
    return a.Timer(a.TimerKind.NODE, node=name)
