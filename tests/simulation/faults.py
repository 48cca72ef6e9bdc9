"""The swarm: each seed switches a random part of all faults on, each at its own rate."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import effects as a
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from tests.simulation.coordinator import Doom, Moment
from tests.simulation.draining import WINDOWS as OF_DRAINS
from tests.simulation.impostor import Impostor
from tests.simulation.node import Node, NodeDoom
from tests.simulation.steering import WINDOWS as MORE_WINDOWS
from tests.simulation.traffic import FIRST_WATCHED

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

# The moments that matter: what is decided there must not be half done.
WINDOWS: Final[tuple[type[f.Fact], ...]] = (
    f.AttemptPlaced,
    f.AttemptPlaced,
    f.AttemptArranged,
    f.AttemptStarted,
    f.AttemptStarted,
    f.StopRequested,
    f.TaskExited,
    f.TaskCleaned,
    f.AttemptClosed,
    f.JobEnded,
    f.JobSubmitted,
    f.CancelRequested,
    f.RetryScheduled,
    f.TaskLost,
    cf.NodeRegistered,
    cf.EpochStarted,
)
STEPS: Final = (
    a.CreateTask,
    a.SendToShim,
    a.ArrangeNetwork,
    a.RestoreNetwork,
    a.RemoveTask,
    a.SendReport,
)

KINDS: Final = {
    "coordinator_crash": 400.0,
    "coordinator_power": 900.0,
    "coordinator_doom": 60.0,
    "coordinator_freeze": 600.0,
    "agent_crash": 150.0,
    "agent_doom": 60.0,
    "agent_freeze": 300.0,
    "agent_stumble": 300.0,
    "node_reboot": 500.0,
    "node_power": 600.0,
    "folder_loss": 900.0,
    "shim_kill": 300.0,
    "impostor": 150.0,
    "reset": 60.0,
    "half_open": 200.0,
    "partition": 200.0,
    "partition_up": 300.0,
    "partition_down": 300.0,
    "partition_all": 600.0,
}
"""Every kind, with the mean seconds between two of it."""


class Swarm:
    """The faults of one run. Each happens again and again, at random, until `stop`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = world = cluster.world
        self.active = True
        rng = self.world.rng
        share = rng.choice((0.05, 0.15, 0.3, 0.3, 0.5))
        self.chosen = {
            kind: mean_s * rng.choice((0.5, 1.0, 3.0))
            for kind, mean_s in KINDS.items()
            if rng.random() < share
        }
        frames, node_faults = cluster.network.faults, rng.random() < share
        frames.lost = rng.choice((0.002, 0.02)) if rng.random() < share else 0.0
        frames.repeated = rng.choice((0.01, 0.1)) if rng.random() < share else 0.0
        frames.delayed = rng.choice((0.002, 0.02)) if rng.random() < share else 0.0
        frames.slow = rng.choice((0.01, 0.2)) if rng.random() < share else 0.0
        cluster.coordinator.slow_disk = 0.05 if rng.random() < share else 0.0
        for node in cluster.nodes:
            node.spawn_fails = 0.15 if node_faults and rng.random() < 0.5 else 0.0
            node.misnames = 0.15 if node_faults and rng.random() < 0.5 else 0.0
            node.dawdles = 0.05 if rng.random() < share else 0.0
        for kind in self.chosen:
            self._next(kind)
        # Chance of its own, so that seeds stay what they were where nothing is rewired.
        self._wires = random.Random(f"wires {cluster.world.seed}")
        for node in cluster.nodes:
            node.unmeets = 0.15 if self._wires.random() < 0.2 else 0.0
            if world.seed >= FIRST_WATCHED:
                node.machine.unwritable = 0.1 if self._wires.random() < 0.2 else 0.0
        if self._wires.random() < 0.3:
            self._rewire_later()

    def stop(self) -> None:
        """No fault is begun any more, and those that last are undone."""
        self.active = False
        cluster = self.cluster
        cluster.coordinator.slow_disk = 0.0
        cluster.coordinator.doom = None
        for node in cluster.nodes:
            node.spawn_fails = node.misnames = node.unmeets = node.dawdles = 0.0
            node.machine.unwritable = 0.0
            node.doom = None
            self._rewire(node, rewired=False)
        cluster.network.heal()

    def _rewire_later(self) -> None:
        self.world.at(self._wires.expovariate(1.0 / 100.0), self._rewire_one)

    def _rewire_one(self) -> None:
        if self.active:
            node = self._wires.choice(self.cluster.nodes)
            self._rewire(node, rewired=not node.machine.rewired)
            self.world.met["rewired"] += 1
            self._rewire_later()

    def _rewire(self, node: Node, *, rewired: bool) -> None:
        """Agents of one host share its card."""
        for other in self.cluster.nodes:
            if other is node or other.machine in node.machine.beside:
                other.rewire(rewired=rewired)

    def _next(self, kind: str) -> None:
        self.world.at(
            self.world.rng.expovariate(1.0 / self.chosen[kind]), partial(self._strike, kind)
        )

    def _strike(self, kind: str) -> None:
        if not self.active:
            return
        strike: Callable[[], bool] = getattr(self, kind)
        if strike():
            self.world.met[kind] += 1
            self.world.log(f"FAULT {kind}")
        self._next(kind)

    def _anyone(self) -> Node:
        return self.world.rng.choice(self.cluster.nodes)

    def busy(self) -> Node:
        """A node that has something to lose, if one can be found at once."""
        node = self._anyone()
        return node if node.machine.folders else self._anyone()

    def _lasting(self) -> float:
        """Seconds: mostly short, sometimes about as long as a lease, sometimes far longer."""
        rng, lease_s = self.world.rng, self.cluster.limits.lease_s
        return rng.choice(
            (rng.uniform(0.5, 10.0), rng.uniform(10.0, 40.0), lease_s * rng.uniform(0.7, 1.8))
        )

    # --- the coordinator ------------------------------------------------------------------

    def coordinator_crash(self) -> bool:
        return self._crash(power=False)

    def coordinator_power(self) -> bool:
        return self._crash(power=True)

    def _crash(self, *, power: bool) -> bool:
        if not self.cluster.coordinator.up:
            return False
        self.cluster.coordinator.crash(power=power)
        return True

    def coordinator_doom(self) -> bool:
        rng = self.world.rng
        power = rng.random() < 0.2
        windows = WINDOWS if self.cluster.steering is None else WINDOWS + MORE_WINDOWS
        windows += OF_DRAINS if self.cluster.draining is not None else ()
        self.cluster.coordinator.doom = Doom(rng.choice(windows), rng.choice(list(Moment)), power)
        return self.cluster.coordinator.up

    def coordinator_freeze(self) -> bool:
        coordinator = self.cluster.coordinator
        if not coordinator.listening:
            return False
        coordinator.freeze()
        self.world.at(self._lasting(), coordinator.thaw)
        return True

    # --- the nodes ------------------------------------------------------------------------

    def agent_crash(self) -> bool:
        node = self._anyone()
        if not node.up:
            return False
        node.crash()
        rng = self.world.rng
        self.world.at(rng.choice((rng.uniform(0.05, 2.0), self._lasting())), node.start)
        return True

    def agent_freeze(self) -> bool:
        node = self._anyone()
        if not node.up or node.frozen:
            return False
        node.freeze()
        self.world.at(self._lasting(), node.thaw)
        return True

    def agent_doom(self) -> bool:
        """Stop or die in the middle of something."""
        rng = self.world.rng
        node = self._anyone()
        if not node.up:
            return False
        freeze_s = rng.choice((0.0, self.cluster.limits.lease_s * rng.uniform(1.0, 2.0)))
        node.doom = NodeDoom(rng.choice(STEPS), freeze_s)
        return True

    def agent_stumble(self) -> bool:
        """Stopped for less than a lease, and cut off as soon as it goes on."""
        node = self.busy()
        if not node.up or node.frozen:
            return False
        lease_s = self.cluster.limits.lease_s
        node.freeze()
        self.world.at(lease_s * self.world.rng.uniform(0.3, 0.9), partial(self.cut_off, node))
        return True

    def cut_off(self, node: Node) -> None:
        node.thaw()
        if self.active:
            self.cluster.network.cut(node.name, self.cluster.limits.lease_s * 2, up=True, down=True)

    def node_reboot(self) -> bool:
        return self._power(self.busy(), self.world.rng.uniform(2.0, 60.0))

    def node_power(self) -> bool:
        """Off for so long that the others have to go on without it."""
        return self._power(self.busy(), self.cluster.limits.lease_s * 3)

    def folder_loss(self) -> bool:
        """The node comes back with an empty disk."""
        node = self.busy()
        if not self._power(node, self.world.rng.uniform(2.0, 90.0)):
            return False
        # Their logs are gone, too.
        self.cluster.checkers.ground.ran.difference_update(node.machine.folders)
        node.machine.folders.clear()
        return True

    def _power(self, node: Node, off_s: float) -> bool:
        if not node.machine.powered:
            return False
        node.crash(power=True)
        node.machine.power_off()
        self.world.at(off_s, partial(self.cluster.power_on, node))
        return True

    def shim_kill(self) -> bool:
        node = self._anyone()
        alive = [t for t, x in node.machine.folders.items() if x.shim and not x.shim.dead]
        if not alive:
            return False
        node.machine.kill_shim(self.world.rng.choice(alive))
        return True

    def impostor(self) -> bool:
        """Best while the true agent is away."""
        cluster = self.cluster
        if not cluster.coordinator.listening:
            return False
        away = [n for n in cluster.nodes if n.connection is None and n.known]
        node = self.world.rng.choice(away or cluster.nodes)
        if not node.known:
            return False
        stays_s = self.world.rng.choice((1.0, 30.0, 200.0))
        Impostor(self.world, cluster.network, cluster.coordinator, node, stays_s)
        return True

    # --- the network ----------------------------------------------------------------------

    def reset(self) -> bool:
        connections = list(self.cluster.network.connections)
        if not connections:
            return False
        self.world.rng.choice(connections).reset()
        return True

    def half_open(self) -> bool:
        connections = list(self.cluster.network.connections)
        if not connections:
            return False
        connection = self.world.rng.choice(connections)
        both = self.world.rng.random() < 0.5
        way = self.world.rng.random() < 0.5
        connection.up.silent |= both or way
        connection.down.silent |= both or not way
        return True

    def partition(self) -> bool:
        self.cluster.network.cut(self.busy().name, self._lasting(), up=True, down=True)
        return True

    def partition_up(self) -> bool:
        self.cluster.network.cut(self.busy().name, self._lasting(), up=True, down=False)
        return True

    def partition_down(self) -> bool:
        self.cluster.network.cut(self.busy().name, self._lasting(), up=False, down=True)
        return True

    def partition_all(self) -> bool:
        for_s = self._lasting()
        for node in self.cluster.nodes:
            self.cluster.network.cut(node.name, for_s, up=True, down=True)
        return True
