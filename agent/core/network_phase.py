"""The network state of a task on this node: its hosts table and the check that the gang is
reachable."""

from __future__ import annotations

import enum
from typing import Final

from muster.protocol.link.control_channel import ArrangeTask


class NetworkPhase(enum.Enum):
    """NONE: nothing to undo. LEFT: an earlier agent process may have arranged something. READY:
    verified."""

    NONE = "none"
    LEFT = "left"
    ARRANGING = "arranging"
    READY = "ready"
    REFUSED = "refused"


_P = NetworkPhase
NETWORK_TRANSITIONS: Final[dict[NetworkPhase, frozenset[NetworkPhase]]] = {
    _P.NONE: frozenset({_P.ARRANGING}),
    _P.LEFT: frozenset({_P.ARRANGING, _P.NONE}),
    # Arranged again if the coordinator sends another plan for a gang that has not started.
    _P.ARRANGING: frozenset({_P.ARRANGING, _P.READY, _P.REFUSED, _P.NONE}),
    _P.READY: frozenset({_P.ARRANGING, _P.NONE}),
    _P.REFUSED: frozenset({_P.ARRANGING, _P.NONE}),
}


def needed(plan: ArrangeTask) -> bool:
    """True if the plan has peers to reach. A gang of one node has no hosts table."""
    return bool(plan.hosts)
