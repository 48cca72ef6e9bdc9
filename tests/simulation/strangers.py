"""Agents that join by names which mean something else to the machines of their peers."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import (
    Command,
    Hello,
    Inventory,
    NodeObservations,
    Refused,
    Welcome,
)
from tests.simulation.cluster import Cluster
from tests.simulation.network import Cut
from tests.simulation.world import Violation

NAMES: Final = ("mirror.example.org", "n0.example.org", "10.0.0.1", "localhost", "a b")
"""Each would lead, in a peer's hosts file, from another machine to the stranger's."""
_EVERY_S: Final = 60.0
_STAYS_S: Final = 20.0


class Strangers:
    """All of a run: one of them knocks now and then. `refused` counts those not let in."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Chance of its own, so that all else in a run stays what it was.
        self._rng = random.Random(f"strangers {cluster.world.seed}")
        self._number = 0
        self.refused = 0
        self._next()

    def _next(self) -> None:
        self._cluster.world.at(self._rng.expovariate(1.0 / _EVERY_S), self._knock)

    def _knock(self) -> None:
        cluster = self._cluster
        if cluster.world.now > cluster.trouble_s:
            return
        self._next()
        if not cluster.coordinator.listening:
            return
        self._number += 1
        name = self._rng.choice(NAMES)
        place = NodeName(f"stranger-{self._number}")
        cluster.network.cuts[place] = Cut()
        connection = cluster.network.connect(place)
        connection.on_command = partial(self._hear, name)
        cluster.coordinator.accept(connection, "10.8.8.8")
        inventory = Inventory(address="10.8.8.8", machine_id=place, pool="strangers")
        hello = Hello(NodeName(name), place, f"boot-{place}", "0.1.0", NodeObservations(inventory))
        connection.send_report(hello)
        cluster.world.at(_STAYS_S, connection.close_agent)

    def _hear(self, name: str, command: Command) -> None:
        match command:
            case Welcome():
                raise Violation(f"hosts: a node is called {name!r}")
            case Refused():
                self.refused += 1
            case _:
                pass
