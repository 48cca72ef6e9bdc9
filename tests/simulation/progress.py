"""Checkpoints that programs write, as nodes see them."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import inputs as s
from muster.protocol.ids import TaskId, parse_task_id

if TYPE_CHECKING:
    from tests.simulation.node import Node

_EVERY_S: Final = 25.0


class Progress:
    """Polls of one node into the folders of its tasks' jobs, which all nodes share."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rng = random.Random(f"progress {node.world.seed} {node.name}")

    def watch(self, task: TaskId) -> None:
        """From now on, in this life of the agent."""
        folder = self.node.machine.folders.get(task)
        if folder is not None and folder.checkpoints:
            self.node.later(self.rng.uniform(1.0, _EVERY_S), partial(self._look, task, ""))

    def _look(self, task: TaskId, known: str) -> None:
        node = self.node
        folder = node.machine.folders.get(task)
        if folder is None:
            return
        # Some programs never get anywhere.
        job, _, _ = parse_task_id(task)
        slow = random.Random(f"slow {node.world.seed} {job}").random() < 0.4
        name = known
        if folder.shim is not None and folder.shim.running and not slow:
            name = f"step-{int(node.world.now // _EVERY_S)}"
        if name != known:
            node.world.met["checkpoint_seen"] += 1
            node.feed(s.TaskObserved(task, s.TaskChanges(checkpoint=name)))
        node.later(_EVERY_S, partial(self._look, task, name))
