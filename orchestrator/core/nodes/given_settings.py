"""Settings of agents that the coordinator gives, when its file is read again."""

from __future__ import annotations

from muster.protocol.observations.node_settings import GiveSettings, NodeSetting
from orchestrator.core.facts import effects as a
from orchestrator.core.model.limits import CentralSettings
from orchestrator.core.model.state import Node, State


def changed_settings(
    state: State, before: CentralSettings, after: CentralSettings
) -> list[a.Effect]:
    """Return what to send to the connected nodes whose settings have changed. The others get
    theirs when they connect.
    """
    found: list[a.Effect] = []
    for name, node in state.nodes.items():
        given = _of(after, node)
        if node.session is not None and given != _of(before, node):
            found.append(a.Send(name, node.session, GiveSettings(given)))
    return found


def _of(settings: CentralSettings, node: Node) -> tuple[NodeSetting, ...]:
    return settings.of(node.name, node.inventory.pool, node.inventory.labels)
