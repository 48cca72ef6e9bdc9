"""RDMA on the nodes: the carrier of a gang's traffic, and ports whose links go down."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import inputs as s
from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.traffic import FabricReport, NcclEvidence, PortFigures, PortHealth

if TYPE_CHECKING:
    from tests.simulation.node import Node

FIRST_WATCHED: Final = 400
"""From this seed on. Those before stay the runs that they were."""

_EVERY_S: Final = 30.0
_GB: Final = 10**9


class Traffic:
    """Traffic of one node. `active` is False in peace: no link goes down any more."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.on = node.world.seed >= FIRST_WATCHED and bool(node.machine.fabric.ports)
        self.active = self.on
        self.rng = random.Random(f"traffic {node.world.seed} {node.name}")
        self.flaps = 0
        self.down = False
        if self.on and self.rng.random() < 0.4:
            self._flap_later()

    def watch(self, task: TaskId) -> None:
        """Looked at again and again, until the task is over or its agent dies."""
        if self.on:
            self.node.later(self.rng.uniform(1.0, _EVERY_S), partial(self._look, task, 1))

    def make_peace(self) -> None:
        self.active = False
        if self.down:
            self.down = False
            self._report()

    def ports(self) -> tuple[PortHealth, ...]:
        if not self.flaps:
            return ()
        name = self.node.machine.fabric.ports[0].key
        state = "DOWN, Polling" if self.down else ""
        return (PortHealth(name, self.down, state, self.flaps),)

    def _look(self, task: TaskId, times: int) -> None:
        folder = self.node.machine.folders.get(task)
        if folder is None or folder.shim is None or not folder.shim.running:
            return
        # All nodes of a gang use the same transport, which a random number drawn for the job
        # chooses.
        job, attempt, _ = parse_task_id(task)
        by_tcp = random.Random(f"carried {self.world.seed} {job} {attempt}").random() < 0.3
        key = self.node.machine.fabric.ports[0].key
        moved = 0 if by_tcp else times * 10 * _GB
        evidence = NcclEvidence(
            processes=1,
            decided=1,
            sockets=int(by_tcp),
            version="2.18.3",
            network="Socket" if by_tcp else "IB",
            over_rdma=0 if by_tcp else 4,
            over_tcp=4 if by_tcp else 0,
        )
        figures = PortFigures(key, planned=True, sent=moved, received=moved)
        report = FabricReport(times * _EVERY_S, times, ports=(figures,), peak=1e9, nccl=evidence)
        self.world.met["traffic_seen"] += 1
        self.node.feed(s.TaskObserved(task, s.TaskChanges(traffic=report)))
        self.node.later(_EVERY_S, partial(self._look, task, times + 1))

    def _flap_later(self) -> None:
        self.world.at(self.rng.expovariate(1 / 200.0), self._flap)

    def _flap(self) -> None:
        if not self.active:
            return
        self.down = not self.down
        self.flaps += self.down
        self.world.met["link_flap"] += self.down
        self._report()
        self._flap_later()

    def _report(self) -> None:
        if self.node.up and not self.node.frozen:
            self.node.feed(s.NodeObserved(NodeChanges(ports=self.ports())))
