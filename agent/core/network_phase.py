"""What a task has of this node's network: a host table, and the proof that its gang is reached."""

from __future__ import annotations

import enum
from typing import Final

from muster.protocol.control_channel import ArrangeTask


class NetworkPhase(enum.Enum):
    """NONE: there is nothing to take back. LEFT: an earlier life of the agent may have arranged
    something. READY: proved."""

    NONE = "none"
    LEFT = "left"
    ARRANGING = "arranging"
    READY = "ready"
    REFUSED = "refused"


_P = NetworkPhase
NETWORK_TRANSITIONS: Final[dict[NetworkPhase, frozenset[NetworkPhase]]] = {
    _P.NONE: frozenset({_P.ARRANGING}),
    _P.LEFT: frozenset({_P.ARRANGING, _P.NONE}),
    # Again, where the coordinator has another plan for a gang that has not begun.
    _P.ARRANGING: frozenset({_P.ARRANGING, _P.READY, _P.REFUSED, _P.NONE}),
    _P.READY: frozenset({_P.ARRANGING, _P.NONE}),
    _P.REFUSED: frozenset({_P.ARRANGING, _P.NONE}),
}


def needed(plan: ArrangeTask) -> bool:
    """Whether there are peers to be reached. A gang of one node has no host table."""
    return bool(plan.hosts)
