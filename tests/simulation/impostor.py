"""A second agent that calls itself by the name of another: a cloned image, a copied file."""

from __future__ import annotations

from functools import partial

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import (
    Command,
    Heartbeat,
    Hello,
    NodeObservations,
    Refused,
)
from tests.simulation.coordinator import Coordinator
from tests.simulation.network import Connection, Cut, Network
from tests.simulation.node import Node
from tests.simulation.world import World

BEAT_S = 5.0


class Impostor:
    """Says Hello once under the name of `node`, has no tasks, ignores every command, and leaves."""

    def __init__(
        self, world: World, network: Network, coordinator: Coordinator, node: Node, stays_s: float
    ) -> None:
        self.world = world
        self.refused = False
        address = NodeName(f"like-{node.name}")
        network.cuts[address] = Cut()
        connection = self._connection = network.connect(address)
        connection.on_command = self._hear
        coordinator.accept(connection, "10.9.9.9")
        connection.send_report(
            Hello(
                node=node.name,
                agent_id=f"like-{node.name}",
                boot_id="another",
                version="0.1.0",
                observed=NodeObservations(node.machine.described()),
            )
        )
        world.at(stays_s, connection.close_agent)
        world.at(BEAT_S, partial(self._beat, connection))

    def _beat(self, connection: Connection) -> None:
        if connection.agent_open:
            connection.send_report(Heartbeat(self.world.now))
            self.world.at(BEAT_S, partial(self._beat, connection))

    def _hear(self, command: Command) -> None:
        if isinstance(command, Refused):
            self.world.met["impostor_refused"] += 1
            self._connection.close_agent()
