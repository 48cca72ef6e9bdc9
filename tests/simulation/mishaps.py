"""Seeds in which what is rare elsewhere comes often: a node's small failures, GPUs that go as they
are given out, agents that stay away while a task prepares, processes that outlive SIGKILL."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from muster.spec.model import JobSpec
from tests.simulation.programs import Program
from tests.simulation.shim import ABANDONED_S, BEFORE_GATE, FIRST_STUCK
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

CLUMSY: Final = range(950, FIRST_STUCK)
"""Seeds with mishaps. All others stay the runs that they were."""

_EVERY_S: Final = 10.0
_SLOW_S: Final = (20.0, 110.0)
_TRIES: Final = 12


def deserting(seed: int) -> bool:
    """True if in this run agents leave tasks that prepare; in the others small things fail."""
    return seed in CLUMSY and seed % 2 == 0


def with_mishaps(world: World, number: int, program: Program) -> Program:
    """Perhaps one that takes its time to prepare, or whose processes SIGKILL does not end."""
    if world.seed not in CLUMSY:
        return program
    own = random.Random(f"mishaps {world.seed} {number}")
    if deserting(world.seed) and own.random() < 0.5:
        program = replace(program, setup_s=_SLOW_S)
    if own.random() < 0.8:
        program = replace(program, unkillable=0.9)
    return program


def with_patience(world: World, spec: JobSpec) -> JobSpec:
    """Retry the job again and again, where small things fail."""
    if world.seed not in CLUMSY or deserting(world.seed):
        return spec
    retry = msgspec.structs.replace(spec.retry, infra=_TRIES, backoff_s=1.0)
    return msgspec.structs.replace(spec, retry=retry)


class Mishaps:
    """All of a run, until peace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"mishaps {cluster.world.seed}")
        self.active = cluster.world.seed in CLUMSY
        if not self.active:
            return
        if deserting(self.world.seed):
            self.world.at(_EVERY_S, self._look)
            return
        for node in cluster.nodes:
            node.spawn_fails = 0.05
            node.misnames = 0.2
            node.unmeets = 0.5
            node.machine.unwritable = 0.1

    def make_peace(self) -> None:
        self.active = False

    def _look(self) -> None:
        if not self.active:
            return
        self.world.at(_EVERY_S, self._look)
        for node in self.cluster.nodes:
            if self._prepares(node) and self.rng.random() < 0.25:
                self._desert(node)

    def _prepares(self, node: Node) -> bool:
        shims = [folder.shim for folder in node.machine.folders.values()]
        return node.up and any(
            shim is not None and not shim.dead and shim.phase in BEFORE_GATE for shim in shims
        )

    def _desert(self, node: Node) -> None:
        """Its agent dies, and stays away for longer than a shim waits that has not begun."""
        self.world.met["agent_deserts"] += 1
        self.world.log("FAULT agent_deserts")
        node.crash()
        away_s = ABANDONED_S * self.rng.uniform(1.1, 3.0)
        self.world.at(away_s, partial(self._return, node))

    def _return(self, node: Node) -> None:
        if node is not self.cluster.gone:
            node.start()
