"""Processes that SIGKILL does not end: how many, for how long, and what must be true meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.core.shim_protocol import ShimPhase
from muster.protocol.ids import NodeName, TaskId, parse_task_id
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import service as sf
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import State
from orchestrator.core.model.task import OVER
from orchestrator.core.nodes.unkillable import NODES_MAX
from tests.simulation.checkers import Checkers
from tests.simulation.coordinator import Coordinator
from tests.simulation.shim import FIRST_STUCK, Shim
from tests.simulation.world import World

_WAITS_S: Final = 400.0
"""The slack in peace: the coordinator may be down for twice a lease, and learns of it once more."""
_EVERY_S: Final = 20.0


class Stuck:
    """Watches one run: who computes no more holds up nobody, and nobody is sent to it."""

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        checkers: Checkers,
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.checkers = checkers
        self._resumed: set[NodeName] = set()
        self._spared: set[NodeName] = set()  # stay in service despite such processes
        self._since: dict[TaskId, float] = {}
        if world.seed >= FIRST_STUCK:
            checkers.watchers.append(self._turned)
            world.at(_EVERY_S, self._look)

    def _turned(self, state: State, facts: list[f.Fact]) -> None:
        for fact in facts:
            match fact:
                case lf.SurvivorsReported(node, task, pids) if pids:
                    self._resumed.discard(node)
                    if state.nodes[node].in_service and self._user_has_taken_enough(state, task):
                        self._spared.add(node)
                case sf.NodeResumed(node):
                    self._resumed.add(node)
                case sf.NodeDrained(node):
                    self._spared.discard(node)
                case f.AttemptPlaced(job, _, nodes):
                    self._check(state, job, nodes)
                case f.TaskJoined(job, _, _, node):
                    self._check(state, job, (node,))
                case f.TaskLost(_, _, _, reason) if reason.startswith("SIGKILL"):
                    self.world.met["given_up"] += 1
                case _:
                    pass

    def _check(self, state: State, job: int, nodes: tuple[NodeName, ...]) -> None:
        for name in nodes:
            held = state.nodes[name].survivors
            if held and name not in self._resumed | self._spared:
                self.checkers.fail(f"stuck: job {job} is sent to {name}, which {held} hold")

    def _user_has_taken_enough(self, state: State, task: TaskId) -> bool:
        """True if the jobs of the task's user have taken as many nodes out of service as they
        may.
        """
        job = state.jobs.get(parse_task_id(task)[0])
        drains = [node.drain.left_by for node in state.nodes.values() if node.drain is not None]
        users = [left_by[1] for left_by in drains if left_by is not None]
        return job is not None and users.count(job.user) >= NODES_MAX

    def _look(self) -> None:
        self.world.at(_EVERY_S, self._look)
        held: Mapping[NodeName, Mapping[TaskId, Shim]] = self.checkers.ground.on_node
        there = {
            task: shim
            for shims in held.values()
            for task, shim in shims.items()
            if shim.phase is ShimPhase.STUCK and shim.wedged and not shim.dead
        }
        now = self.world.now
        self._since = {task: self._since.get(task, now) for task in there}
        for task, shim in there.items():
            since = max(self._since[task], self.checkers.peace_at)
            if now - since > _WAITS_S and self._waits(task, shim.node):
                self.checkers.fail(f"stuck: its gang waits for {task}, which computes no more")

    def _waits(self, task: TaskId, node: NodeName) -> bool:
        state = self.coordinator.state
        known = state.task(task)
        if not self.coordinator.listening or known is None or node not in state.nodes:
            return False
        return state.nodes[node].link is LinkState.CONNECTED and known.state not in OVER
