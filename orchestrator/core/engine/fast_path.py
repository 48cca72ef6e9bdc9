"""What may be said while the disk is slow: that an agent is heard, and nothing that follows of it.

An agent gives its coordinator up after two heartbeats without a word. A bare heartbeat makes no
fact that is kept, so its answer waits for no commit, and it may pass what waits for one. Whoever is
heard out of turn is heard as of when it spoke, and its lease never becomes shorter by it.
"""

from __future__ import annotations

from muster.protocol.control_channel import Heartbeat, HeartbeatAck
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.state import State


def is_plain_heartbeat(state: State, received: s.Input) -> bool:
    """Whether this is a heartbeat with no news, on a connection that counts."""
    if not isinstance(received, s.ReportReceived) or received.session not in state.sessions:
        return False
    report = received.report
    return isinstance(report, Heartbeat) and report == Heartbeat(
        report.sent_s, wall_s=report.wall_s
    )


def is_answer(action: a.Effect) -> bool:
    """Whether this says that a heartbeat was heard, and nothing else."""
    return isinstance(action, a.Send) and isinstance(action.command, HeartbeatAck)
