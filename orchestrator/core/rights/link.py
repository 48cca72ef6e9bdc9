"""Actions of the messages of agents. A message without one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.protocol.link.control_channel import Heartbeat, Hello, StacksReport, TaskReport
from muster.protocol.link.log_channel import (
    Chunk,
    EndStream,
    Hole,
    LogHello,
    OpenStream,
    TaskLogsEnd,
)
from orchestrator.core.rights.principals import NODE, Policy
from orchestrator.core.rights.rules import Action, may

MESSAGES: Final[Mapping[type, Action]] = {
    Hello: Action.CONNECT,
    Heartbeat: Action.REPORT,
    TaskReport: Action.REPORT,
    StacksReport: Action.REPORT,
    LogHello: Action.CONNECT,
    OpenStream: Action.SHIP_LOGS,
    Chunk: Action.SHIP_LOGS,
    Hole: Action.SHIP_LOGS,
    EndStream: Action.SHIP_LOGS,
    TaskLogsEnd: Action.SHIP_LOGS,
}
_ALLOWED: Final = frozenset(
    kind for kind, action in MESSAGES.items() if may(NODE, action, None, Policy())
)


def node_may_send(kind: type) -> bool:
    """True if a node may send messages of this type."""
    return kind in _ALLOWED
