"""Restores of older backups.

Users lose what came after the backup. What must hold all the same: no two attempts of a job run at
once, no node has two owners, and all comes to an end. The seeds below 0 are for this; the others
stay the runs that they were.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from muster.protocol.ids import NodeName
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.restored import JournalRestored
from orchestrator.core.model.job import JobPhase
from orchestrator.journal.left_out import first_attempt
from tests.simulation.vouching import REBOOTED_GANGS, VOUCHING

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

RESTORED: Final = range(-100, 0)
REBOOTED: Final = range(-600, -500)
"""Seeds of RESTORED whose nodes are rebooted before the restore. No command reaches them
for a while after it, although they say hello. Gangs vouch in some of these runs."""
LEFT_OUT: Final = 1000
JOBS_LEFT_OUT: Final = 1000
_BACKUP_EVERY_S: Final = 120.0
_RESTORE_EVERY_S: Final = 240.0


class Restores:
    """All of a run. In peace nothing is restored any more."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world, seed = cluster.world, cluster.world.seed
        self.rng = random.Random(f"restores {cluster.world.seed}")
        self.backup: list[tuple[bytes, float]] = []
        self.rebooted: list[Node] = []  # since the backup
        self.number = 0
        self.peace = False
        self.reboots = seed in REBOOTED
        if self.reboots or seed in RESTORED or (seed in VOUCHING and seed % 4 == 0):
            self._later()
        self.scene: f.AttemptPlaced | None = None  # its attempt, until the restore
        # Seconds without commands once a node connects; True if its reports arrive all the same.
        self.cuts: dict[NodeName, tuple[float, bool]] = {}
        if seed in REBOOTED_GANGS:
            cluster.coordinator.committed = self._committed
            cluster.network.connected = self._connected

    def make_peace(self) -> None:
        self.peace = True

    def _later(self) -> None:
        self.world.at(self.rng.expovariate(1 / _BACKUP_EVERY_S), self._back_up)
        self.world.at(self.rng.expovariate(1 / _RESTORE_EVERY_S), self._restore)

    def _back_up(self) -> None:
        self.backup = list(self.cluster.disk.synced)
        self.rebooted.clear()
        self.world.at(self.rng.expovariate(1 / _BACKUP_EVERY_S), self._back_up)
        if self.reboots:
            node = self.rng.choice(self.cluster.nodes)
            self.world.at(self.rng.uniform(0.0, 20.0), partial(self._reboot, node))

    def _reboot(self, node: Node, at_most_s: float = 20.0) -> None:
        if self.peace or not node.machine.powered:
            return
        self.world.met["reboot_after_backup"] += 1
        self.world.log(f"FAULT reboot of {node.name} after a backup")
        self.rebooted.append(node)
        node.crash(power=True)
        node.machine.power_off()
        off_s = self.rng.uniform(1.0, at_most_s)
        self.world.at(off_s, partial(self.cluster.power_on, node))

    def _deafen_at_hello(self, node: Node, tries: int = 3000) -> None:
        if self.peace or not tries:
            return
        if node.connection is None:
            self.world.at(0.01, partial(self._deafen_at_hello, node, tries - 1))
        else:
            self.cluster.network.cut(node.name, self.rng.uniform(5.0, 60.0), up=False, down=True)

    # --- gangs that vouch -----------------------------------------------------------------

    def _committed(self, facts: list[f.Fact]) -> None:
        """A backup is made as a gang has been placed, and the attempt begins in another boot."""
        placed = [x for x in facts if isinstance(x, f.AttemptPlaced) and self._lasts(x)]
        if self.peace or self.scene is not None or not placed:
            return
        self.scene = self.rng.choice(placed)
        backup = list(self.cluster.disk.synced)
        nodes = {node.name: node for node in self.cluster.nodes}
        rebooted, cut, *_ = self.rng.sample([nodes[name] for name in self.scene.nodes], 2)
        self._reboot(rebooted, at_most_s=3.0)
        self.world.at(1.0, partial(self._restore_gang, self.scene, backup, rebooted, cut, 200))

    def _lasts(self, placed: f.AttemptPlaced) -> bool:
        """True if this is a small gang that runs for long, of a job that is tried again."""
        spec = self.cluster.disk.shadow.jobs[placed.job].spec
        program = self.cluster.programs.by_name[spec.name]
        small, long = len(placed.nodes) in (2, 3), program.never_ends or program.run_s[1] > 100.0
        return small and long and spec.retry.infra > 0

    def _restore_gang(
        self,
        scene: f.AttemptPlaced,
        backup: list[tuple[bytes, float]],
        rebooted: Node,
        cut: Node,
        tries: int,
    ) -> None:
        """Once the attempt runs, restore the backup.

        One member reads no stop for a while, and another is gone as soon as it has said hello.
        """
        job = self.cluster.disk.shadow.jobs.get(scene.job)
        attempt = None if job is None else job.current
        if self.peace or not tries or attempt is None or attempt.number != scene.attempt:
            self.scene = None
            return
        runs = all(task.state is TaskState.STARTED for task in attempt.tasks)
        if not runs or not self.cluster.coordinator.up:
            again = partial(self._restore_gang, scene, backup, rebooted, cut, tries - 1)
            self.world.at(1.0, again)
            return
        self.scene = None
        self.world.met["restored_gang"] += 1
        lease_s = self.cluster.limits.lease_s
        self.cuts[rebooted.name] = lease_s * self.rng.uniform(1.5, 4.0), True
        self.cuts[cut.name] = lease_s * self.rng.uniform(4.0, 8.0), False
        self._put_back(backup)

    def _connected(self, node: NodeName) -> None:
        for_s, heard = self.cuts.pop(node, (0.0, True))
        if for_s and not self.peace:
            network = self.cluster.network
            network.cut(node, for_s, up=False, down=True)
            if not heard:
                self.world.at(1.0, partial(network.cut, node, for_s, up=True, down=False))

    def _restore(self) -> None:
        if self.peace:
            return
        self.world.at(self.rng.expovariate(1 / _RESTORE_EVERY_S), self._restore)
        if self.backup:
            self._put_back(self.backup)
            for node in self.rebooted:
                self._deafen_at_hello(node)

    def _put_back(self, backup: list[tuple[bytes, float]]) -> None:
        cluster, coordinator = self.cluster, self.cluster.coordinator
        coordinator.crash()
        self.number += 1
        self.world.met["restore"] += 1
        self.world.log(f"FAULT restore {self.number}")
        replaced = cluster.disk.shadow
        cluster.disk.put_back(backup)
        state = cluster.disk.shadow
        attempts = tuple(
            (name, job.last_attempt)
            for name, job in replaced.jobs.items()
            if name in state.jobs and job.last_attempt > state.jobs[name].last_attempt
        )
        # It can be read, or all nodes are in the backup.
        readable = set(replaced.nodes) > set(state.nodes) or self.rng.random() < 0.5
        nodes = {*replaced.nodes, *replaced.awaited}
        fact = JournalRestored(
            LEFT_OUT,
            tuple(sorted(nodes)) if readable else (),
            attempts if readable else (),
            first_attempt=first_attempt(self.number),
        )
        cluster.disk.stage(fact, self.world.wall())
        cluster.disk.sync()
        coordinator.epochs = max(coordinator.epochs, replaced.epoch)
        # A journal that is replaced before its coordinator has started has this number, too.
        known = max(replaced.next_job, state.next_job, coordinator.first_job)
        coordinator.first_job = known + JOBS_LEFT_OUT
        cluster.checkers.restored()
        self._forget()

    def _forget(self) -> None:
        """Users find out what is lost, and do not ask for it again."""
        jobs = self.cluster.disk.shadow.jobs
        for client in self.cluster.clients:
            if client.job is None:
                continue
            known = jobs.get(client.job)
            if known is None:
                client.job, client.declined = None, True
                client.wants_cancel = False
            elif known.cancel is None and known.phase is not JobPhase.ENDED:
                client.wants_cancel = client.cancel_heard = False
