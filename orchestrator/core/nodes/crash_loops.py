"""Agents that restart again and again: their nodes get no more jobs, and running jobs continue.

Restarts by hand are not distinguished, but so many within ten minutes are no upgrade. Agents that
die before their hello are not counted: such a node is not connected and gets no jobs anyway.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import NodeName
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes.quarantine import out_of_pool, pool_bears

WITHIN_S: Final = 600.0
LIVES_KEPT: Final = 32


def another_life(node: Node, instance: str) -> bool:
    """True if the agent was restarted."""
    return bool(node.instance) and node.instance != instance


def restarted(
    state: State, name: NodeName, instance: str, now_mono: float, limits: Limits
) -> list[f.Fact]:
    """Handle the hello of an agent.

    Drain its node if the agent was restarted too often and the pool can bear it.
    """
    policy, node = limits.quarantine, state.nodes.get(name)
    if not policy.restarts or node is None or not node.in_service:
        return []
    if not another_life(node, instance):
        return []
    lives = [at for at in (*node.lives, now_mono) if at > now_mono - WITHIN_S]
    if len(lives) <= policy.restarts:
        return []
    if not pool_bears(*out_of_pool(state, node, limits), limits):
        return []
    reason = (
        f"its agent has started {len(lives)} times in {WITHIN_S / 60:g} minutes; "
        "see its log: journalctl -u muster-agent; fix it, then resume the node"
    )
    return [sf.NodeDrained(name, ITSELF, reason)]
