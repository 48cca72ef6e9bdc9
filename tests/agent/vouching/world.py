"""A gang in a virtual world: real cores of agents, drifting clocks, networks cut in every shape.

The coordinator here only answers, ends the attempt at some time, and counts a silent member as over
by the rule: `max(last answer to it, another member's confirmed stop or new boot) + L + margin`.
`Violation` is raised if a member that counts as over still runs.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimKill, ShimLease, ShimPhase, ShimStatus, ShimStop
from agent.core.state import AgentIdentity, State
from agent.core.turn import turn
from agent.core.vouching import answer, vouched
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import Member, Terms

LEASE_S = 100.0
HEARTBEAT_S = 5.0
KILL_S = 10.0
DRIFT = 0.02
PATHS = s.TaskPaths("/w", "/s", "/o", "/h")
COORDINATOR = -1


def margin_s(lease_s: float) -> float:
    """Return the time for which the coordinator waits after a lease."""
    return KILL_S + 5.0 + 2 * DRIFT * lease_s


class Violation(Exception):
    """A member runs that counts as over."""


@dataclass
class Machine:
    """A node: its clock, its disk, the ranks with their deadline, and the agent process."""

    rank: int
    rate: float
    boot: int = 1
    life: int = 0
    record: TaskRecord | None = None
    wanted: TaskRecord | None = None  # is being written, or next
    runs: bool = True
    deadline: float | None = None  # of the world's clock
    ended_at: float | None = None
    state: State | None = None
    connection: int = 0  # 0: none
    timers: dict[a.Timer, float] = field(default_factory=dict)


class World:
    """A single gang from its start on; `now` is the coordinator's clock."""

    def __init__(self, seed: int, size: int = 3, margin: Callable[[float], float] = margin_s):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.met: Counter[str] = Counter()
        self.margin = margin
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._connections = itertools.count(1)
        self.cuts: Counter[tuple[int, int]] = Counter()
        self.tasks = [TaskId(f"1.1.{rank}") for rank in range(size)]
        members = tuple(Member(task, str(rank), 1) for rank, task in enumerate(self.tasks))
        self.machines = [Machine(rank, 1 + self.rng.uniform(-DRIFT, DRIFT)) for rank in range(size)]
        self.answered: dict[int, float] = dict.fromkeys(range(size), 0.0)
        self.mute: dict[int, float] = {}
        self.ended: set[int] = set()  # by their own report
        self.stopping = False
        self.disk_s = 2.0  # a write takes so long at most
        self.sent: list[tuple[int, bytes]] = []
        for machine in self.machines:
            self.run_on(machine, Terms(1, members=members))

    def run_on(self, machine: Machine, terms: Terms) -> None:
        """A machine has its plan on disk, and its ranks run."""
        task = self.tasks[machine.rank]
        plan = m.ArrangeTask(task, ("x",), {}, (), "", key="ab" * 32, terms=terms)
        machine.record = TaskRecord("boot-1", "c1", plan, plan.terms)
        machine.deadline = self.now + LEASE_S
        self._watch(machine)
        self.start(machine)

    # --- the clock ----------------------------------------------------------------------------

    def at(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), call))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()
            self._judge()
        self.now = until

    def _judge(self) -> None:
        """The coordinator counts members as over: none of them may run."""
        if not self.stopping:
            return
        for machine in self.machines:
            others = [at for rank, at in self.mute.items() if rank != machine.rank]
            if not others or machine.rank in self.ended:
                continue
            over = max(self.answered[machine.rank], min(others)) + LEASE_S + self.margin(LEASE_S)
            if self.now >= over:
                self.met["judged"] += 1
                if machine.runs:
                    raise Violation(
                        f"at {self.now:.1f} member {machine.rank} runs: over {over:.1f}"
                    )

    # --- faults -------------------------------------------------------------------------------

    def cut(self, links: list[tuple[int, int]], for_s: float) -> None:
        """Cut these directions; COORDINATOR is one of the ends."""
        for link in links:
            self.cuts[link] += 1

        def mend() -> None:
            for link in links:
                self.cuts[link] -= 1

        self.at(for_s, mend)

    def crash(self, machine: Machine, for_s: float) -> None:
        """Kill the agent; the ranks go on."""
        machine.state, machine.connection, machine.wanted = None, 0, None
        machine.life += 1
        life = machine.life
        self.at(for_s, lambda: self.start(machine) if machine.life == life else None)

    def reboot(self, machine: Machine, for_s: float) -> None:
        machine.boot += 1
        self._end(machine)
        self.crash(machine, for_s)

    def replay(self) -> None:
        """Send what somebody has recorded."""
        if self.sent:
            rank, data = self.rng.choice(self.sent)
            self._arrive(rank, self.rng.randrange(len(self.machines)), data)

    # --- ranks --------------------------------------------------------------------------------

    def _watch(self, machine: Machine) -> None:
        def look() -> None:
            if machine.runs and machine.deadline is not None and self.now >= machine.deadline:
                # They may take all of the kill's time.
                self.at(KILL_S, lambda: self._end(machine))
                return
            if machine.runs:
                self.at(0.5, look)

        self.at(0.5, look)

    def _end(self, machine: Machine) -> None:
        if machine.runs:
            machine.runs, machine.ended_at = False, self.now

    def _tell(self, machine: Machine, command: object) -> None:
        match command:
            case ShimLease(ttl_s) if machine.runs:
                overdue = machine.deadline is not None and machine.deadline <= self.now
                if not overdue:
                    machine.deadline = self.now + ttl_s / machine.rate if ttl_s else None
            case ShimKill() | ShimStop():
                self._end(machine)
                task = self.tasks[machine.rank]
                status = ShimStatus(task, ShimPhase.CLEANED, running_s=1.0)
                self.at(0.1, lambda: self._feed(machine, s.ShimReported(task, status)))
            case _:
                pass

    # --- agents -------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        identity = AgentIdentity(
            NodeName(f"n{machine.rank}"),
            "id",
            f"boot-{machine.boot}",
            "0",
            instance=f"{machine.rank}-{machine.life}",
        )
        inventory = m.Inventory("10.0.0.1", "machine")
        machine.state = State(identity, m.NodeObservations(inventory), cluster="c1")
        machine.timers.clear()
        phase = ShimPhase.RUNNING if machine.runs else ShimPhase.CLEANED
        task = self.tasks[machine.rank]
        status = ShimStatus(task, phase, running_s=1.0)
        self._feed(
            machine,
            s.TaskFound(task, status, PATHS, lease_s=LEASE_S, record=machine.record),
        )
        self._dial(machine, machine.life)

    def _dial(self, machine: Machine, life: int) -> None:
        if machine.life != life or machine.connection:
            return
        if self._open(machine.rank, COORDINATOR) and self._open(COORDINATOR, machine.rank):
            machine.connection = next(self._connections)
            self._feed(machine, s.LinkUp())
        else:
            self.at(1.0, lambda: self._dial(machine, life))

    def _feed(self, machine: Machine, received: s.Input) -> None:
        if machine.state is None:
            return
        for effect in turn(machine.state, received, Instant(self.now * machine.rate, 0.0)):
            self._perform(machine, effect)

    def _perform(self, machine: Machine, effect: a.Effect) -> None:
        life = machine.life
        match effect:
            case a.SendReport(report):
                self._up(machine, machine.connection, report)
            case a.CloseLink():
                machine.connection = 0
                self.at(0.0, lambda: self._feed(machine, s.LinkDown()))
                self.at(1.0, lambda: self._dial(machine, life))
            case a.StoreRecord(task, record):
                idle, machine.wanted = machine.wanted is None, record
                if idle:
                    self._write(machine, task)
            case a.SendToShim(_, command):
                self._tell(machine, command)
            case a.AskMembers(questions):
                for one in questions:
                    self._datagram(machine.rank, int(one.address), one.data)
            case a.SetTimer(timer, at):
                machine.timers[timer] = at

                def fire() -> None:
                    if machine.life == life and machine.timers.get(timer) == at:
                        self._feed(machine, s.TimerFired(timer))

                self.at(max(0.0, at / machine.rate - self.now), fire)
            case _:
                pass

    def _write(self, machine: Machine, task: TaskId) -> None:
        """Write the newest record, and then one that was wanted meanwhile."""
        life, record = machine.life, machine.wanted
        assert record is not None

        def stored() -> None:
            if machine.life != life:
                return
            machine.record = record
            self._feed(machine, s.RecordStored(task, record))
            if machine.wanted is record:
                machine.wanted = None
            else:
                self._write(machine, task)

        self.at(self.rng.uniform(0.0, self.disk_s), stored)

    # --- networks -----------------------------------------------------------------------------

    def _open(self, source: int, target: int) -> bool:
        return not self.cuts[source, target]

    def _latency(self) -> float:
        return self.rng.uniform(0.0, 3.0) if self.rng.random() < 0.1 else 0.002

    def _datagram(self, source: int, target: int, data: bytes) -> None:
        self.sent = [*self.sent[-50:], (source, data)]
        if self._open(source, target) and self.rng.random() > 0.1:
            self.at(self._latency(), lambda: self._arrive(source, target, data))

    def _arrive(self, source: int, target: int, data: bytes) -> None:
        machine = self.machines[target]
        if machine.state is None:
            return
        answered = answer(machine.state, data)
        if answered is not None:
            self.met["vouch"] += 1
            self._datagram(target, source, answered)
            return
        received = vouched(machine.state, data)
        if received is not None:
            self._feed(machine, received)

    def _up(self, machine: Machine, connection: int, report: m.Report) -> None:
        if not connection or not self._open(machine.rank, COORDINATOR):
            return
        self.at(self._latency(), lambda: self._hear(machine, connection, report))

    def _down(self, machine: Machine, connection: int, command: m.Command) -> None:
        if not self._open(COORDINATOR, machine.rank):
            return

        def arrive() -> None:
            if machine.connection == connection:
                self._feed(machine, s.CommandReceived(command))

        self.at(self._latency(), arrive)

    # --- the coordinator ----------------------------------------------------------------------

    def _hear(self, machine: Machine, connection: int, report: m.Report) -> None:
        rank, task = machine.rank, self.tasks[machine.rank]
        match report:
            case m.Hello():
                if report.boot_id != "boot-1":
                    self._muted(rank)
                    self.ended.add(rank)
                self.answered[rank] = self.now
                session = SessionId(connection)
                welcome = m.Welcome(1, session, HEARTBEAT_S, "0", "c1", (task,))
                self._down(machine, connection, welcome)
                if self.stopping:
                    self._stop(machine, connection)
                for said in report.tasks:
                    self._reported(rank, said)
            case m.Heartbeat(sent_s):
                self.answered[rank] = self.now
                self._down(machine, connection, m.HeartbeatAck(sent_s))
                if self.stopping:
                    self._stop(machine, connection)
            case m.TaskReport():
                self._reported(rank, report)
            case _:
                pass

    def _reported(self, rank: int, report: m.TaskReport) -> None:
        if report.stop_stored:
            self._muted(rank)

    def _muted(self, rank: int) -> None:
        if rank not in self.mute:
            self.met["muted"] += 1
            self.mute[rank] = self.now

    def _stop(self, machine: Machine, connection: int) -> None:
        self._down(machine, connection, m.StopTask(self.tasks[machine.rank], force=True))
