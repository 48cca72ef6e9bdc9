"""Operators who take nodes out of service and back, and what must be true of such nodes."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from muster.protocol.ids import JobId, NodeName
from muster.protocol.outcome import CauseCode, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.node import AdminState
from orchestrator.core.model.state import State
from tests.simulation.checkers import Checkers
from tests.simulation.coordinator import Coordinator
from tests.simulation.health import FIRST_SEEN
from tests.simulation.leases import FIRST_LEASED
from tests.simulation.world import COMPARED, World

FIRST_DRAINED: Final = 380
"""From this seed on. Those before stay the runs that they were."""

NEVER: Final = Quarantine(jobs=0, restarts=0)
WINDOWS: Final[tuple[type[f.Fact], ...]] = (sf.NodeDrained, sf.NodeResumed, sf.DrainTimed)

_DEADLINES_S: Final = (None, None, 0.0, 2.0, 30.0, 300.0)
_DECLINED: Final = frozenset({"check_failed", "unknown_node"})
_SLACK_S: Final = 900.0
"""The slack of a deadline in peace: the coordinator may be down for twice a lease, repeatedly."""


def quarantine_of(seed: int) -> Quarantine:
    """Return the threshold for quarantine in this run."""
    if seed < FIRST_DRAINED:
        return NEVER
    rng = random.Random(f"quarantine {seed}")
    return Quarantine(rng.choice((1, 2)), rng.choice((1, 4)), rng.choice((0.25, 0.5)))


class Draining:
    """All operators of a run. In peace every node is resumed, once its deadline was kept."""

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        checkers: Checkers,
        nodes: list[NodeName],
        trouble_s: float,
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.checkers = checkers
        self.nodes = nodes
        self.rng = random.Random(f"draining {world.seed}")
        self.peace = False
        self._patience = random.Random(f"after {world.seed}")
        self._asked: dict[NodeName, int] = {}
        self._acked: set[NodeName] = set()  # drained, and nobody has asked to resume since
        checkers.watchers.append(self._turned)
        checkers.promises.others.append(self._kept)
        self._later()
        # A deadline for a process that did not receive it.
        world.at(trouble_s - 10.0, partial(self._drain_last, self.rng.choice(nodes)))
        world.at(trouble_s - 2.0, coordinator.crash)

    def make_peace(self) -> None:
        self.peace = True
        for name, node in self.coordinator.state.nodes.items():
            left_s = None if node.drain is None else node.drain.left_s
            wait_s = 0.0 if not left_s else left_s + _SLACK_S
            number = 0 if node.drain is None else node.drain.number
            self.world.at(wait_s, partial(self._in_peace, name, number if left_s else 0))
        known = self.coordinator.state.nodes
        for name in self.nodes:
            if name not in known:
                self.world.at(0.0, partial(self._in_peace, name, 0))

    def forget(self, name: NodeName) -> None:
        """It is about to be removed, and its drain with it."""
        self._asked[name] = self._asked.get(name, 0) + 1
        self._acked.discard(name)

    def _later(self) -> None:
        self.world.at(self.rng.expovariate(1 / 40.0), self._act)

    def _act(self) -> None:
        if self.peace:
            return
        name = self.rng.choice(self.nodes)
        if self.coordinator.listening and name in self.coordinator.state.nodes:
            node = self.coordinator.state.nodes[name]
            if node.drain is not None and self.rng.random() < 0.7:
                # A check compares the clocks of nodes: its answer is another with another wall
                # clock, above all if nodes report their clocks at every report.
                seed = self.world.seed
                checks = self.rng.random() < 0.5 and seed < FIRST_SEEN and seed % COMPARED > 0
                self._resume(name, check=checks)
            else:
                self._drain(name, self.rng.choice(_DEADLINES_S))
        self._later()

    def _drain_last(self, name: NodeName) -> None:
        if self.coordinator.listening and name in self.coordinator.state.nodes:
            self._drain(name, 300.0)

    def _drain(self, name: NodeName, deadline_s: float | None) -> None:
        self._asked[name] = self._asked.get(name, 0) + 1
        leased = self.world.seed >= FIRST_LEASED and deadline_s != 0.0
        after = leased and self._patience.random() < 0.5
        self.world.met["drain_after_checkpoint"] += after
        self.coordinator.ask(
            lambda request: s.DrainReceived(request, name, "ana", "bad DIMM", deadline_s, after),
            partial(self._answered, name, self._asked[name], True),
        )

    def _resume(self, name: NodeName, *, check: bool) -> None:
        self._asked[name] = self._asked.get(name, 0) + 1
        self._acked.discard(name)
        self.coordinator.ask(
            lambda request: s.ResumeReceived(request, name, "ana", check),
            partial(self._answered, name, self._asked[name], False),
        )

    def _answered(self, name: NodeName, number: int, drained: bool, result: a.Result) -> None:
        if isinstance(result, a.NodeServiceChanged):
            self.world.met["drain" if drained else "resume"] += result.anything
            if drained and number == self._asked[name]:
                self._acked.add(name)
                self._kept(self.checkers.durable)
        elif not isinstance(result, a.Declined) or result.code not in _DECLINED:
            self.checkers.fail(f"drain: answered with {result}")
        else:
            self.world.met["resume_refused"] += result.code == "check_failed"

    def _in_peace(self, name: NodeName, number: int) -> None:
        """Repeat until it is received: the coordinator may be restarting."""
        node = self.coordinator.state.nodes.get(name)
        if self.coordinator.listening and node is not None and node.drain is not None:
            if node.drain.number == number and node.drain.left_s:
                self.checkers.fail(f"drain: the deadline of {name} is over, and not kept")
            self._resume(name, check=False)
        self.world.at(20.0, partial(self._in_peace, name, 0))

    # --- what must be true --------------------------------------------------------------------

    def _kept(self, durable: State) -> None:
        """Asked when a new process has read the disk, too."""
        for name in self._acked:
            if durable.nodes[name].drain is None:
                self.checkers.fail(f"I1: the drain of {name} was acknowledged and is lost")

    def _turned(self, state: State, facts: list[f.Fact]) -> None:
        for at, fact in enumerate(facts):
            match fact:
                case f.AttemptPlaced(job, _, nodes):
                    self._none_drained(state, job, nodes)
                case f.TaskJoined(job, _, _, node):
                    self._none_drained(state, job, (node,))
                case f.AttemptStarted(job, number):
                    tasks = state.jobs[job].attempt(number).tasks
                    # A node that is drained later keeps the attempt until it ends.
                    later = {it.node for it in facts[at:] if isinstance(it, sf.NodeDrained)}
                    nodes = tuple(task.node for task in tasks if task.node not in later)
                    self._none_drained(state, job, nodes)
                case f.JobEnded(job, cause) if cause.code is CauseCode.DRAINED:
                    self.checkers.fail(f"drain: job {job} is lost by it: {cause.text}")
                case f.StopRequested(_, _, cause) if cause.code is CauseCode.DRAINED:
                    self.world.met["drained_away"] += 1
                case sf.NodeDrained(node, jobs=jobs) if jobs:
                    self._check_quarantine(state, node, jobs)
                case _:
                    pass
        for name, known in state.nodes.items():
            if known.drain is not None and not known.holders:
                self.world.met["drained"] += 1
                if known.admin is not AdminState.DRAINED:
                    self.checkers.fail(f"drain: {name} has no jobs and is {known.admin}")

    def _none_drained(self, state: State, job: JobId, nodes: tuple[NodeName, ...]) -> None:
        for name in nodes:
            if state.nodes[name].drain is not None:
                self.checkers.fail(f"drain: job {job} begins on {name}, which is drained")

    def _check_quarantine(self, state: State, name: NodeName, jobs: tuple[JobId, ...]) -> None:
        self.world.met["quarantined"] += 1
        policy: Limits = self.coordinator.limits
        node = state.nodes[name]
        pool = [n for n in state.nodes.values() if n.inventory.pool == node.inventory.pool]
        out = sum(n.drain is not None and bool(n.drain.jobs) for n in pool)
        if out > policy.quarantine.pool_share * len(pool):
            self.checkers.fail(f"quarantine: {out} of {len(pool)} nodes, {name} the last")
        if len(set(jobs)) < policy.quarantine.jobs:
            self.checkers.fail(f"quarantine: of {name} for {jobs}")
        for job in jobs:
            causes = [it.cause for it in state.jobs[job].attempts if it.cause is not None]
            # A peer that was lost is why ranks fail that know no other reason.
            failed = [it for it in causes if it.outcome is Outcome.INFRA or it.node_fault]
            lost = any(
                task.node == name and task.state is TaskState.LOST
                for attempt in state.jobs[job].attempts
                for task in attempt.tasks
            )
            if not failed and not lost:
                self.checkers.fail(f"quarantine: of {name} for job {job}, which failed of {causes}")
