"""The part of an agent's shell that makes a gang's names known on its node, and proves them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from agent.core import inputs as s
from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.link.control_channel import Refusal
from muster.protocol.refusal_codes import RefusalCode
from tests.simulation.crashes import Deed, When

if TYPE_CHECKING:
    from tests.simulation.node import Node


class Names:
    """Host tables of one agent process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._arranging: dict[TaskId, int] = {}  # by task: which order of it is the last

    def forget(self) -> None:
        self._arranging.clear()

    def arranging(self, task: TaskId) -> Callable[[], None]:
        """Return the step to take unless a newer request comes first."""
        return partial(self._arrange, task, self._next(task))

    def restoring(self, task: TaskId) -> Callable[[], None]:
        self._next(task)
        return partial(self._restore, task)

    def _next(self, task: TaskId) -> int:
        number = self._arranging[task] = self._arranging.get(task, 0) + 1
        return number

    def _arrange(self, task: TaskId, number: int) -> None:
        """The host table is written, then every name of it resolved."""
        if self._arranging.get(task) != number:
            return
        if self.node.dies(Deed.WRITES, "ArrangeNetwork", When.BEFORE):
            return
        self.node.machine.blocks.add(task)
        self.node.ground.block_written(self.node.name, task)
        if self.node.dies(Deed.WRITES, "ArrangeNetwork", When.AFTER):
            return
        self.node.later(self.node.pause(0.02), partial(self._prove, task, number))

    def _prove(self, task: TaskId, number: int) -> None:
        if self._arranging.get(task) != number:
            return
        if self.node.world.chance(self.node.misnames):
            self.node.world.met["name_unresolved"] += 1
            refusal = Refusal("hosts_unresolved", "a peer has another address here")
            self.node.feed(s.NetworkRefused(task, refusal))
            return
        if self.node.world.chance(self.node.unmeets):
            launcher = parse_task_id(task)[2] == 0
            self.node.world.met["port_taken" if launcher else "launcher_unreachable"] += 1
            code = RefusalCode.PORT_TAKEN if launcher else RefusalCode.UNREACHABLE
            self.node.feed(
                s.NetworkRefused(task, Refusal(code, "as scripted", node_fault=not launcher))
            )
            return
        self.node.ground.network_proved(task)
        self.node.feed(s.NetworkArranged(task))

    def _restore(self, task: TaskId) -> None:
        if self.node.dies(Deed.WRITES, "RestoreNetwork", When.BEFORE):
            return
        self.take(task)
        if not self.node.dies(Deed.WRITES, "RestoreNetwork", When.AFTER):
            self.node.feed(s.NetworkRestored(task))

    def take(self, task: TaskId) -> None:
        if task in self.node.machine.blocks:
            self.node.machine.blocks.remove(task)
            self.node.ground.block_removed(self.node.name, task)
