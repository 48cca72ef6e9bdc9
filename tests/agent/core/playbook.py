"""Drive an agent's core with inputs from the coordinator, from shims and from the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.shim_protocol import ShimPhase, ShimStatus
from agent.core.state import AgentIdentity, State
from agent.core.turn import turn
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link import control_channel as m

TASK = TaskId("1.1.0")
PATHS = s.TaskPaths("/w", "/t/scratch", "/o", "/t/hostfile")
PREPARE = m.PrepareTask(TASK, "torchrun", "/w", None, (), {"A": "1"}, 300.0, 8, lease_s=300.0)
ARRANGE = m.ArrangeTask(TASK, ("--nnodes", "1"), {"B": "2"}, (), "n1 slots=1\n", 20001)
IDENTITY = AgentIdentity(NodeName("n1"), "id", "boot", "0.1.0")
INVENTORY = m.Inventory("10.0.0.1", "machine")
OBSERVED = m.NodeObservations(INVENTORY)


@dataclass
class Agent:
    """The core of an agent; `effects` are all that it has requested. If its disk is not `quick`, a
    test stores the records."""

    state: State = field(default_factory=lambda: State(IDENTITY, OBSERVED))
    mono: float = 100.0
    effects: list[a.Effect] = field(default_factory=list)
    quick: bool = True

    def turn(self, received: s.Input) -> list[a.Effect]:
        done = turn(self.state, received, Instant(self.mono, 0.0))
        self.effects += done
        if self.quick:
            done += self.store(done)
        return done

    def store(self, effects: list[a.Effect]) -> list[a.Effect]:
        """Have the records of these effects on disk."""
        stored = [it for it in effects if isinstance(it, a.StoreRecord)]
        return [then for it in stored for then in self.turn(s.RecordStored(it.task, it.record))]

    def hear(self, command: m.Command) -> list[a.Effect]:
        return self.turn(s.CommandReceived(command))

    def connect(self, *keep: TaskId, epoch: int = 1, protocol: int = 1) -> list[a.Effect]:
        self.turn(s.LinkUp())
        welcome = m.Welcome(epoch, SessionId(1), 5.0, "0.1.0", "c1", keep, protocol)
        return self.hear(welcome)

    def shim(self, phase: ShimPhase, **more: Any) -> list[a.Effect]:
        status = ShimStatus(TASK, phase, log_dir="/t/logs", **more)
        return self.turn(s.ShimReported(TASK, status))

    def at_gate(self) -> None:
        self.connect()
        self.hear(PREPARE)
        self.turn(s.TaskPlaced(TASK, PATHS, (20001,)))
        self.shim(ShimPhase.NEW)
        self.shim(ShimPhase.PREPARED)
        self.hear(ARRANGE)

    def running(self) -> None:
        self.at_gate()
        self.hear(m.StartTask(TASK))
        self.shim(ShimPhase.RUNNING, running_s=0.0)


def reports(effects: list[a.Effect]) -> list[m.TaskReport]:
    return [
        x.report
        for x in effects
        if isinstance(x, a.SendReport) and isinstance(x.report, m.TaskReport)
    ]


def sent_to_shim(effects: list[a.Effect]) -> list[Any]:
    return [x.command for x in effects if isinstance(x, a.SendToShim)]
