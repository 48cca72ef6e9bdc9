"""Wall clocks of nodes that differ from the coordinator's."""

from __future__ import annotations

from muster.spec.units import duration_text
from orchestrator.core.model.state import Node


def clock_warning(node: Node) -> str:
    """Return a warning if the node's wall clock and ours differ, else ""."""
    if not node.ahead_s:
        return ""
    way = "ahead of" if node.ahead_s > 0 else "behind"
    return (
        f"the clock of {node.name} is {duration_text(abs(node.ahead_s))} {way} the coordinator's: "
        "set the time of the one that is wrong"
    )
