"""Random faults at real daemons with real jobs, and then the judgement; one seed is one sequence.

The sequence of faults and of what users do is the seed's; what they meet is the machine's.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.local_cluster import ClusterError
from examples.rig.machine import RigError
from muster.client import ApiError, ClientError
from muster.protocol.states import ENDED_STATES
from tests.storm import judge
from tests.storm.cluster import StormCluster
from tests.storm.deeds import Deeds
from tests.storm.users import Users
from tests.storm.watch import Watch, at_rest

CONVERGENCE_S = 240.0
AGENTS = 3
TICK_S = 0.1
REAPED_S = 30.0
"""So long what was killed with its machine may still be a process, on a machine that is busy."""


@dataclass
class Report:
    """Course of a storm, and its violations."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    users: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    converged_s: float | None = None
    grown_bytes: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"seed {self.seed}: {sum(self.faults.values())} faults"]
        lines += [f"  {count:5} {name}" for name, count in sorted(self.faults.items())]
        lines.append("users: " + ", ".join(f"{n} {w}" for w, n in sorted(self.users.items())))
        states = ", ".join(f"{n} {w}" for w, n in sorted(self.states.items()))
        lines.append(f"jobs: {states}; {self.attempts} attempts")
        if self.converged_s is not None:
            lines.append(f"all had come to an end {self.converged_s:.1f} s after the last fault")
        grown = ", ".join(f"{name} {size >> 20} MiB" for name, size in self.grown_bytes.items())
        lines.append(f"memory grew by: {grown}")
        lines += [f"VIOLATION {text}" for text in self.violations]
        lines.append(f"{len(self.violations)} violations")
        return "\n".join(lines)


class Storm:
    """A storm in `root`, which holds all its files; `storm.jsonl` is its event log."""

    def __init__(self, root: Path, seed: int, seconds: float) -> None:
        self.root, self.seed, self.seconds = root, seed, seconds
        self.report = Report(seed)
        self._undo: list[tuple[float, int, str, Callable[[], None]]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        root.mkdir(parents=True, exist_ok=True)
        self._events = (root / "storm.jsonl").open("a", buffering=1)
        self._rng = random.Random(f"faults {seed}")

    def run(self) -> Report:
        cluster = StormCluster(self.root / "cluster", agents=AGENTS, seed=self.seed)
        try:
            with cluster:
                self._storm(cluster)
        except (ClusterError, RigError) as error:
            self._violation(f"the cluster failed: {error}")
        ends = time.monotonic() + REAPED_S
        while (left := cluster.leftovers()) and time.monotonic() < ends:
            time.sleep(TICK_S)
        for line in left:
            self._violation(f"I4: when all is over a process is left: {line}")
        self._events.close()
        return self.report

    def _storm(self, cluster: StormCluster) -> None:
        before = {name: machine.hosts() for name, machine in cluster.machines.items()}
        users = Users(
            cluster.client(),
            self.root / "jobs",
            random.Random(f"users {self.seed}"),
            self._say,
            no_room=lambda: time.monotonic() < self._deeds.full_until,
        )
        deeds = Deeds(
            cluster,
            self._rng,
            self._later,
            self._fault,
            self.root / "harm",
            lambda: list(users.jobs),
        )
        self._deeds = deeds
        memory = judge.Memory(cluster)
        watch = Watch(cluster, deeds.excused)
        users.start()
        with watch:
            self._do_deeds(cluster, deeds, memory)
            calm = time.monotonic()
            done = users.stop(CONVERGENCE_S)
        deeds.harm.close()
        for text in (*watch.violations(), *deeds.harm.violations):
            self._violation(text)
        if not done:
            self._violation("I10: a user still waits for an answer")
            return
        self._converge(cluster, users, calm)
        memory.look()
        self.report.grown_bytes = memory.grown()
        for text in memory.violations():
            self._violation(text)
        self._judge(cluster, users, before)

    def _do_deeds(self, cluster: StormCluster, deeds: Deeds, memory: judge.Memory) -> None:
        """For as long as the storm lasts; all are over when this returns."""
        end, due = time.monotonic() + self.seconds, time.monotonic() + 2.0
        while time.monotonic() < end:
            self._undo_due(time.monotonic())
            self._look_at_daemons(cluster)
            if time.monotonic() >= due:
                memory.look()
                deeds.one()
                due = time.monotonic() + self._rng.uniform(1.0, 5.0)
            time.sleep(TICK_S)
        self._say("calm", "no further fault is begun")
        self._undo_due(float("inf"))

    # --- faults and their ends --------------------------------------------------------------------

    def _later(self, seconds: float, target: str, undo: Callable[[], None]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._count), target, undo))

    def _undo_due(self, now: float) -> None:
        while self._undo and self._undo[0][0] <= now:
            _, _, target, undo = heapq.heappop(self._undo)
            undo()
            self._deeds.over(target)
            if target:
                self._say("ended", target)

    def _look_at_daemons(self, cluster: StormCluster) -> None:
        for daemon in (cluster.coordinator, *cluster.nodes.values()):
            if daemon.name in self._deeds.down or daemon.process is None:
                continue
            code = daemon.process.poll()
            if code is not None:
                self._violation(f"{daemon.name} ended by itself, with {code}: {daemon.tail()}")
                raise ClusterError("no daemon may end by itself")

    # --- the end ----------------------------------------------------------------------------------

    def _converge(self, cluster: StormCluster, users: Users, calm: float) -> None:
        """Wait until every job has ended, every log is delivered and nothing is left (I10)."""
        missing = ["nobody has looked"]
        delivered: set[int] = set()
        declared = False
        while missing and time.monotonic() < calm + CONVERGENCE_S:
            self._look_at_daemons(cluster)
            try:
                users.look()
                if not declared:
                    _declare_strangers_lost(cluster)
                    declared = True
                missing = [
                    f"I10: job {job.id} is {job.state.value}"
                    for job in users.jobs.values()
                    if job.state not in ENDED_STATES
                ]
                missing += self._deeds.harm.unfinished()
                missing = missing or judge.left(cluster)
                if not missing:
                    missing = self._undelivered(cluster, users, delivered)
            except ClientError as error:
                missing = [f"I10: the coordinator does not answer: {error}"]
            if missing:
                time.sleep(0.5)
        if missing:
            for text in missing:
                self._violation(text)
        else:
            self.report.converged_s = time.monotonic() - calm
            self._say("converged", f"{self.report.converged_s:.1f}")

    def _undelivered(self, cluster: StormCluster, users: Users, delivered: set[int]) -> list[str]:
        """Return the incomplete logs. A complete log stays so and is not read again."""
        client, missing = cluster.client(), []
        for job in users.jobs.values():
            if job.id not in delivered:
                found = judge.undelivered(client, job)
                missing += found
                if not found:
                    delivered.add(job.id)
        return missing

    def _judge(self, cluster: StormCluster, users: Users, before: dict[str, str]) -> None:
        client = cluster.client()
        for text in users.violations:
            self._violation(text)
        for job in users.jobs.values():
            try:
                for text in judge.judge(client, job):
                    self._violation(text)
            except ApiError as error:
                self._violation(f"I6: job {job.id}: {error}")
            self.report.attempts += len(client.job(job.id).attempts)
            self.report.states[job.state.value] += 1
        for text in at_rest(cluster):
            self._violation(text)
        self.report.users = users.did
        for text in (*judge.hosts_changed(cluster, before), *judge.tracebacks(cluster)):
            self._violation(text)

    # --- the log ----------------------------------------------------------------------------------

    def _fault(self, name: str, target: str) -> None:
        self.report.faults[name] += 1
        self._say("fault", f"{name}: {target}")

    def _violation(self, text: str) -> None:
        if text not in self.report.violations:
            self.report.violations.append(text)
            self._say("violation", text)

    def _say(self, what: str, text: str) -> None:
        entry: dict[str, Any] = {"s": round(time.monotonic() - self._began, 3), what: text}
        with self._lock:
            if not self._events.closed:
                self._events.write(json.dumps(entry) + "\n")


def _declare_strangers_lost(cluster: StormCluster) -> None:
    """Do what an operator does with agents that come once and never again: nothing else proves
    that the jobs placed on them are over."""
    client = cluster.client()
    for node in client.nodes().nodes:
        if node.name not in cluster.nodes:
            client.declare_lost(node.name)
