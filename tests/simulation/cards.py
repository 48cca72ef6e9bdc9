"""GPUs of the simulated machines: which there are, and that they fail and come back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from muster.protocol.link.control_channel import Inventory, with_devices
from muster.protocol.observations.gpus import GpuDevice
from muster.spec.model import JobSpec, Resources
from tests.simulation.mishaps import CLUMSY
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.node import Node

FIRST_SHARED: Final = 300
"""From this seed on, agents distinguish their GPUs, so that jobs share nodes. Those before stay the
runs that they were."""

LOOK_EVERY_S: Final = 60.0


def with_cards(world: World, inventory: Inventory, host: int) -> Inventory:
    """The same node with GPUs that have names; agents of one host see the same ones."""
    if world.seed < FIRST_SHARED:
        return inventory
    own = random.Random(f"cards {world.seed} {host}")
    devices = tuple(
        GpuDevice(f"0000:0{at}:00.0", f"GPU-{host}-{at}", "H100", numa_node=at // 2)
        for at in range(own.choice((2, 4, 4)))
    )
    return with_devices(msgspec.structs.replace(inventory, cpus=8), devices)


def with_part(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Perhaps a job that takes a part of each of its nodes."""
    own = random.Random(f"part {world.seed} {number}")
    if world.seed < FIRST_SHARED or own.random() < 0.3:
        return spec
    wanted = Resources(gpu=own.choice((1, 1, 2)), cpu=own.choice((None, None, 2, 5)))
    return msgspec.structs.replace(spec, resources=wanted)


class Cards:
    """Breaks GPUs and mends them; in peace all are whole. What has changed is noticed by a look
    now and then, or when a task is to have one."""

    def __init__(self, world: World, nodes: Sequence[Node]) -> None:
        self.world = world
        self.nodes = nodes
        self.rng = random.Random(f"broken {world.seed}")
        self.peace = False
        self.means_s = (2.0, 10.0, 30.0) if world.seed in CLUMSY else (5.0, 60.0, 300.0)
        if world.seed >= FIRST_SHARED and self.rng.random() < 0.5:
            self._later()
        if world.seed >= FIRST_SHARED:
            for node in nodes:
                world.at(self.rng.uniform(0.0, LOOK_EVERY_S), partial(self._look, node))

    def make_peace(self) -> None:
        self.peace = True
        for node in self.nodes:
            node.machine.broken.clear()

    def _later(self) -> None:
        self.world.at(self.rng.choice(self.means_s) * self.rng.random(), self._break)

    def _break(self) -> None:
        if self.peace:
            return
        node = self.rng.choice(self.nodes)
        uuid = self.rng.choice(node.machine.inventory.devices).uuid
        hosts = [node.machine, *node.machine.beside]
        mended = uuid in node.machine.broken
        for machine in hosts:
            machine.broken.discard(uuid) if mended else machine.broken.add(uuid)
        self.world.met["gpu_mended" if mended else "gpu_broken"] += 1
        self._later()

    def _look(self, node: Node) -> None:
        node.look_at_gpus()
        self.world.at(LOOK_EVERY_S, partial(self._look, node))
