"""Gangs whose agents vouch for each other: links between agents, absences of the coordinator that
outlast many leases, cuts of every shape, and clocks that drift by 2 %.

The seeds of VOUCHING are for this; the others stay the runs that they were.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import inputs as s
from agent.core.effects import Question
from agent.core.vouching import answer, vouched
from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link.control_channel import ArrangeTask
from orchestrator.core.model.attempt import AttemptPhase

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

VOUCHING: Final = range(-500, -100)
ELASTIC: Final = range(-700, -600)
"""Seeds like VOUCHING without restores; some of the gangs are elastic."""
REBOOTED_GANGS: Final = range(-600, -500, 4)
"""Seeds like VOUCHING with one scene: a node of a gang is rebooted between backup and restore."""
DRIFT: Final = 0.02
LEASES_S: Final = (20.0, 30.0, 60.0)
_SPLIT_EVERY_S: Final = 120.0
_SCENE_EVERY_S: Final = 50.0
_LOOK_EVERY_S: Final = 5.0
_FIRST_PORT: Final = 7000


def vouches(seed: int) -> bool:
    """True if gangs of this run vouch."""
    return seed in VOUCHING or seed in ELASTIC or seed in REBOOTED_GANGS


class Vouching:
    """All of a run, until peace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"vouching {cluster.world.seed}")
        self.active = vouches(cluster.world.seed)
        self.cuts: Counter[tuple[NodeName, NodeName]] = Counter()  # of links between agents
        if not self.active:
            return
        cluster.coordinator.secret = "of the simulator"
        for number, node in enumerate(cluster.nodes):
            node.machine.rate = self.rng.uniform(1 - DRIFT, 1 + DRIFT)
            node.peer_port = _FIRST_PORT + number
            node.vouching = self
        self._later()
        if cluster.world.seed not in REBOOTED_GANGS:  # these have another scene
            self._scene_later()

    def make_peace(self) -> None:
        self.active = False
        self.cuts.clear()

    def absence_s(self) -> float | None:
        """The time for which a coordinator that has died stays away; None for the usual one."""
        short = self.world.seed in REBOOTED_GANGS
        if short or not self.active or self.rng.random() < 0.5:
            return None
        self.world.met["long_absence"] += 1
        return self.cluster.limits.lease_s * self.rng.uniform(1.5, 6.0)

    # --- datagrams ------------------------------------------------------------------------

    def ask(self, node: Node, questions: tuple[Question, ...]) -> None:
        for one in questions:
            for other in self.cluster.nodes:
                if other.peer_port == one.port and _is_at(other, one.address):
                    self._send(node, other, one.data)

    def _send(self, source: Node, target: Node, data: bytes) -> None:
        """Lose some, repeat some, and hold some up for longer than a lease."""
        lease_s = self.cluster.limits.lease_s
        for _ in range(2 if self.rng.random() < 0.05 else 1):
            drawn = self.rng.random()
            if drawn < 0.05 or not self._open(source, target):
                continue
            delay_s = 0.002
            if drawn < 0.15:
                delay_s = self.rng.uniform(0.0, 3.0)
            elif drawn < 0.18:
                delay_s = lease_s * self.rng.uniform(0.2, 2.0)
            target.later(delay_s, partial(self._arrive, source, target, data))

    def _arrive(self, source: Node, target: Node, data: bytes) -> None:
        if target.state is None:
            return
        answered = answer(target.state, data)
        if answered is not None:
            self.world.met["vouch"] += 1
            self._send(target, source, answered)
            return
        received = vouched(target.state, data)
        if received is not None:
            target.feed(received)

    def _open(self, source: Node, target: Node) -> bool:
        return not self.cuts[source.name, target.name]

    # --- what agents see of their neighbours ----------------------------------------------

    def watch_peers(self, node: Node, task: TaskId, arrange: ArrangeTask) -> None:
        """From now on, in this life of the agent, ping the machines of the gang."""
        addresses = {address for _, address in arrange.hosts}
        node.later(
            self.rng.uniform(0.5, 1.5) * _LOOK_EVERY_S, partial(self._look, node, task, addresses)
        )

    def _look(self, node: Node, task: TaskId, addresses: set[str]) -> None:
        if node.state is None or task not in node.state.tasks:
            return
        silent = {
            address
            for address in addresses
            for other in self.cluster.nodes
            if _is_at(other, address) and not self._answers(node, other)
        }
        node.feed(s.TaskObserved(task, s.TaskChanges(silent=tuple(sorted(silent)))))
        node.later(_LOOK_EVERY_S, partial(self._look, node, task, addresses))

    def _answers(self, node: Node, other: Node) -> bool:
        return other.machine.powered and self._open(node, other) and self._open(other, node)

    # --- cuts -----------------------------------------------------------------------------

    def _later(self) -> None:
        self.world.at(self.rng.expovariate(1 / _SPLIT_EVERY_S), self._split)

    def _scene_later(self) -> None:
        self.world.at(self.rng.expovariate(1 / _SCENE_EVERY_S), self._scene)

    def _scene(self) -> None:
        """End an attempt while one member is cut off from the coordinator, and the others are in
        trouble as well."""
        if not self.active:
            return
        self._scene_later()
        found = self._gang()
        if found is None:
            return
        job, gang = found
        lease_s = self.cluster.limits.lease_s
        away, other, *_ = self.rng.sample(gang, len(gang))
        scene = self.rng.choice(
            (self._reboots, self._is_cancelled, self._ends_deaf, self._restarts_alone)
        )
        self.world.met[f"scene{scene.__name__}"] += 1
        self.world.log(f"FAULT scene{scene.__name__}: {away.name}, {other.name}, job {job}")
        cut_s = lease_s * self.rng.uniform(2.5, 6.0)
        if scene == self._restarts_alone:
            self._restarts_alone(job, away, other)
            return
        self._cut_off([away], cut_s)
        self.world.at(lease_s * self.rng.uniform(0.0, 1.5), partial(scene, job, away, other))

    def _reboots(self, _: JobId, __: Node, other: Node) -> None:
        """Reboot another member. Perhaps no command reaches it after its hello."""
        if not self.active or not other.machine.powered:
            return
        other.crash(power=True)
        other.machine.power_off()
        self.world.at(self.rng.uniform(1.0, 20.0), partial(self.cluster.power_on, other))
        if self.rng.random() < 0.7:
            self._deafen_at_hello(other, tries=3000)

    def _deafen_at_hello(self, node: Node, tries: int) -> None:
        if node.connection is not None and self.active:
            self._deafen(node)
        elif tries:
            self.world.at(0.01, partial(self._deafen_at_hello, node, tries - 1))

    def _deafen(self, node: Node) -> None:
        for_s = self.cluster.limits.lease_s * self.rng.uniform(1.5, 4.0)
        self.cluster.network.cut(node.name, for_s, up=False, down=True)

    def _is_cancelled(self, job: JobId, _: Node, other: Node) -> None:
        """Cancel the job. No command reaches another member after it has confirmed the stop.

        Perhaps its agent restarts as well.
        """
        if not self.active:
            return
        for client in self.cluster.clients:
            if client.job == job:
                client.cancel()
        self._deafen_once_stopped(job, other, tries=3000)

    def _deafen_once_stopped(self, job: JobId, node: Node, tries: int) -> None:
        held = {} if node.state is None else node.state.tasks
        if any(it.id.startswith(f"{job}.") and it.stop_stored for it in held.values()):
            self._deafen(node)
            if self.rng.random() < 0.5:
                self.world.at(0.1, partial(self._restart, node))
        elif tries and self.active:
            self.world.at(0.01, partial(self._deafen_once_stopped, job, node, tries - 1))

    def _ends_deaf(self, job: JobId, _: Node, other: Node) -> None:
        """End the task of another member, which no stop reaches."""
        if not self.active:
            return
        self._deafen(other)
        for task in list(other.machine.folders):
            if task.startswith(f"{job}."):
                other.machine.kill_shim(task)

    def _restarts_alone(self, _: JobId, away: Node, __: Node) -> None:
        """A member's agent restarts, and is soon cut off from all."""
        self._restart(away)
        self.world.at(self.rng.uniform(3.0, 15.0), partial(self._isolate, away))

    def _isolate(self, node: Node) -> None:
        if not self.active:
            return
        for_s = self.cluster.limits.lease_s * self.rng.uniform(2.5, 5.0)
        self._cut_off([node], for_s)
        links = [(node.name, other.name) for other in self.cluster.nodes if other is not node]
        links += [(b, a) for a, b in links]
        self._cut(links, for_s)

    def _restart(self, node: Node) -> None:
        if self.active and node.up:
            node.crash()
            self.world.at(self.rng.uniform(0.1, 3.0), node.start)

    def _gang(self) -> tuple[JobId, list[Node]] | None:
        """Some gang that vouches and runs, of two if there is one: the fewer have to agree."""
        nodes = {node.name: node for node in self.cluster.nodes}
        gangs = [
            (job.id, [nodes[task.node] for task in attempt.tasks])
            for job in self.cluster.coordinator.state.jobs.values()
            if (attempt := job.current) is not None
            and attempt.vouch_key
            and attempt.phase is AttemptPhase.RUNNING
            and len(attempt.tasks) > 1
        ]
        pairs = [found for found in gangs if len(found[1]) == 2]
        return self.rng.choice(pairs or gangs) if gangs else None

    def _split(self) -> None:
        if not self.active:
            return
        self._later()
        nodes, rng = self.cluster.nodes, self.rng
        here = rng.sample(nodes, rng.randint(1, max(1, len(nodes) - 1)))
        there = [node for node in nodes if node not in here]
        for_s = self.cluster.limits.lease_s * rng.uniform(0.3, 4.0)
        shape = rng.choice(("split", "alone", "coordinator", "one_way", "split_unseen"))
        self.world.met[f"cut_{shape}"] += 1
        self.world.log(f"FAULT cut_{shape} of {','.join(node.name for node in here)}")
        links = [(a.name, b.name) for a in here for b in there]
        if shape in ("split", "alone", "split_unseen"):
            links += [(b, a) for a, b in links]
        if shape in ("alone", "coordinator"):
            self._cut_off(here, for_s)
        if shape == "split_unseen":
            self._cut_off(nodes, for_s)
        if shape == "one_way" and rng.random() < 0.5:
            self._cut_off(here if rng.random() < 0.5 else there, for_s, one_way=True)
        if shape == "coordinator":
            return
        self._cut(links, for_s)

    def _cut_off(self, nodes: list[Node], for_s: float, *, one_way: bool = False) -> None:
        up = not one_way or self.rng.random() < 0.5
        for node in nodes:
            self.cluster.network.cut(node.name, for_s, up=up, down=not one_way or not up)

    def _cut(self, links: list[tuple[NodeName, NodeName]], for_s: float) -> None:
        for link in links:
            self.cuts[link] += 1
        self.world.at(for_s, partial(self._mend, links))

    def _mend(self, links: list[tuple[NodeName, NodeName]]) -> None:
        for link in links:
            self.cuts[link] = max(0, self.cuts[link] - 1)


def _is_at(node: Node, address: str) -> bool:
    wired = node.machine.wired
    return bool(wired) and wired[-1][1] == address
