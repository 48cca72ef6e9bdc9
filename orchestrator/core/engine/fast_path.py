"""Answers plain heartbeats while a commit is pending.

An agent gives up its connection after two unanswered heartbeats. A plain heartbeat makes no durable
fact, so its answer needs no commit and may overtake inputs that wait for one. The heartbeat counts
as of its arrival, and it never shortens a lease.
"""

from __future__ import annotations

from muster.protocol.link.control_channel import Heartbeat, HeartbeatAck
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.state import State


def is_plain_heartbeat(state: State, received: s.Input) -> bool:
    """True if the input is a heartbeat without news, on a current connection.

    A heartbeat of a node whose description waits for the journal may make a durable fact.
    """
    if not isinstance(received, s.ReportReceived):
        return False
    node = state.sessions.get(received.session)
    if node is None or state.nodes[node].unrecorded:
        return False
    report = received.report
    return isinstance(report, Heartbeat) and report == Heartbeat(
        report.sent_s, wall_s=report.wall_s
    )


def is_answer(action: a.Effect) -> bool:
    """True if the effect only acknowledges a heartbeat."""
    return isinstance(action, a.Send) and isinstance(action.command, HeartbeatAck)
