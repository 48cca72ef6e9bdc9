"""An operator who declares nodes lost, and knows which machines are off."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import State

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

_LOOK_EVERY_S: Final = 25.0
_LAZY: Final = 0.8
"""The share of looks that the operator leaves out, while there is trouble."""


class Operator:
    """Only of a machine that is off it is known that nothing runs there, and of an impostor."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"operator {cluster.world.seed}")
        self.world.at(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self.world.at(_LOOK_EVERY_S, self._look)
        peace = self.cluster.checkers.peace_at > 0
        if not peace and self.rng.random() < _LAZY:
            return
        state = self.cluster.coordinator.state
        for node in self.cluster.nodes:
            if self._nothing_runs(state, node) and self._is_waited_for(state, node):
                given = partial(s.LostReceived, node=node.name, user="ana")
                self.cluster.coordinator.ask(given, self._answered)

    def _nothing_runs(self, state: State, node: Node) -> bool:
        known = state.nodes.get(node.name)
        impostor = known is not None and known.agent_id.startswith("like-")
        return impostor or not node.machine.powered

    def _is_waited_for(self, state: State, node: Node) -> bool:
        known = state.nodes.get(node.name)
        silent = known is not None and known.link is not LinkState.CONNECTED
        return node.name in state.awaited or (silent and bool(tasks_on(state, node.name)))

    def _answered(self, result: a.Result) -> None:
        if isinstance(result, a.NodeServiceChanged):
            self.world.met["declared_lost"] += 1
