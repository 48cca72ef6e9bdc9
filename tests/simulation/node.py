"""A node: the real agent core in a simulated shell, on a machine that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.apply import apply
from agent.core.decide import decide
from agent.core.react import react
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimCommand, ShimHostfile, ShimLease, ShimPhase, ShimStatus
from agent.core.state import AgentIdentity, State
from agent.core.turn import turn
from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Command, NodeChanges, NodeObservations, PrepareTask
from muster.protocol.observations.gpus import usable
from tests.simulation.coordinator import Coordinator
from tests.simulation.crashes import Deed, Point, When, Who
from tests.simulation.ground import Ground
from tests.simulation.health import Health
from tests.simulation.machine import Machine
from tests.simulation.names import Names
from tests.simulation.network import Connection, Network
from tests.simulation.progress import Progress
from tests.simulation.shim import writes_nothing
from tests.simulation.traffic import Traffic
from tests.simulation.vouching import Vouching
from tests.simulation.world import World

REFUSED_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeDoom:
    """Die at the next action of this kind, just before it; or stop there for `freeze_s`."""

    action: type[a.Effect]
    freeze_s: float


class Node:
    """An agent daemon: up, down or stopped (SIGSTOP), with its connection and its timers."""

    def __init__(
        self,
        world: World,
        network: Network,
        coordinator: Coordinator,
        machine: Machine,
        ground: Ground,
    ) -> None:
        self.world = world
        self.network = network
        self.coordinator = coordinator
        self.machine = machine
        self.ground = ground
        self.name = machine.node
        self.up = False
        self.frozen = False
        self.spawn_fails = 0.0
        self.misnames = 0.0  # how often a peer's name is somebody else's here
        self.unmeets = 0.0  # how often the rendezvous port is taken, or not reached from here
        self.dawdles = 0.0  # how often a step of the shell takes seconds
        self.state: State | None = None
        self.connection: Connection | None = None
        self.doom: NodeDoom | None = None
        self.known = False  # it has spoken to a coordinator
        self.cluster = ""  # on disk
        self._life = 0
        self._boot_id = ""
        self._clock_offset = 0.0  # of this boot
        self._dials = 0
        self._deferred: list[Callable[[], None]] = []
        self._records: dict[TaskId, TaskRecord] = {}
        self._timers: dict[a.Timer, float] = {}
        self._shipping: set[TaskId] = set()
        self._busy_shims: dict[TaskId, float] = {}
        self.traffic = Traffic(self)
        self.progress = Progress(self)
        self.health = Health(self)
        self.names = Names(self)
        self.vouching: Vouching | None = None
        self.peer_port = 0
        self._stored_at = 0.0

    # --- its life -------------------------------------------------------------------------

    def start(self) -> None:
        """The daemon begins: it looks for what earlier lives left, then dials."""
        if self.up or not self.machine.powered:
            return
        self.up = True
        self._life += 1
        booted_with = self.world.rng.uniform(0.0, 1e6)  # at each start, so that seeds stay
        if self._boot_id != self.machine.boot_id:
            self._boot_id, self._clock_offset = self.machine.boot_id, booted_with
        self._timers.clear()
        self._shipping.clear()
        self.names.forget()
        machine = self.machine
        self.state = State(
            AgentIdentity(
                self.name,
                f"id-{self.name}",
                machine.boot_id,
                "0.1.0",
                instance=f"{self.name}-{self._life}",
                peer_port=self.peer_port,
            ),
            NodeObservations(machine.described()),
            cluster=self.cluster,
        )
        self.world.log(f"{self.name} agent starts")
        for task in machine.blocks - set(machine.folders):
            self.names.take(task)
        for found in machine.attach(partial(self._shim_reported, self._life)):
            self.feed(found)
            self._ship_if_over(found.task, found.status)
            self.progress.watch(found.task)
            self.health.watch(found.task)
        self._dial_after(self.world.rng.uniform(0.0, 0.2))

    def crash(self, *, power: bool = False) -> None:
        """The daemon is gone; with `power`, so silently that nobody's kernel says so."""
        self.up = False
        self.frozen = False
        self.network.frozen[self.name] = False
        self.state = None
        self._deferred.clear()
        self._records.clear()
        if not power:
            self.machine.detach()
        if self.connection is not None:
            self.connection.close_agent(tell=not power)
            self.connection = None

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True
        self.network.frozen[self.name] = True

    def thaw(self) -> None:
        """SIGCONT: what waited comes in whatever order."""
        if not self.frozen:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        self.network.frozen[self.name] = False
        if self.world.chance(0.5):
            self.network.flow(self.name)
        for call in deferred:
            call()
        self.network.flow(self.name)

    def feed(self, received: s.Input) -> None:
        if self.state is None:
            return
        self.world.steps += 1
        if self.world.crashes is not None:
            self._feed_to_die(self.state, received)
            return
        for action in turn(self.state, received, self._now()):
            if self.doom is not None and isinstance(action, self.doom.action) and self._meet():
                return
            self.perform(action)
        self._store_records()

    def _feed_to_die(self, state: State, received: s.Input) -> None:
        """Do a turn step by step: the agent may die at each of them."""
        now = self._now()
        decision = decide(state, received, now)
        effects = list(decision.effects)
        for fact in decision.facts:
            name = type(fact).__name__
            if self.dies(Deed.DECIDES, name, When.BEFORE):
                return
            apply(state, fact)
            effects += react(state, fact, now)
            if self.dies(Deed.DECIDES, name, When.AFTER):
                return
        for action in effects:
            sent = _sent(action)
            if sent is not None and self.dies(Deed.SENDS, sent, When.BEFORE):
                return
            if self.state is not state:
                return
            self.perform(action)
            if sent is not None and self.dies(Deed.SENDS, sent, When.AFTER):
                return
        self._store_records()

    def dies(self, deed: Deed, what: str, when: When) -> bool:
        crashes = self.world.crashes
        if crashes is None or not self.up or not crashes.due(Who.AGENT, deed, what, when):
            return False
        self.world.log(f"{self.name} {Point(Who.AGENT, deed, what, when)}")
        self.crash()
        self.world.at(1.0, self.start)
        return True

    def _meet(self) -> bool:
        """Carry out the planned crash or freeze; returns True if the daemon is dead now."""
        doom, self.doom = self.doom, None
        assert doom is not None
        self.world.met[
            f"agent_{'stops' if doom.freeze_s else 'dies'}_in_{doom.action.__name__}"
        ] += 1
        if doom.freeze_s:
            # The agent finishes the current step and then does nothing for a long time.
            self.freeze()
            self.world.at(doom.freeze_s, self.thaw)
            return False
        self.crash()
        self.world.at(self.world.rng.uniform(0.05, 3.0), self.start)
        return True

    def _now(self) -> Instant:
        return Instant(self.mono, self.world.wall())

    @property
    def mono(self) -> float:
        """Seconds of the clock that the daemon goes by."""
        return self.world.now * self.machine.rate + self._clock_offset

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """In this life of the daemon, and not while it is stopped."""
        self.world.at(delay_s, partial(self._arrive, self._life, call))

    def _arrive(self, life: int, call: Callable[[], None]) -> None:
        if not self.up or self._life != life:
            return
        if self.frozen:
            self._deferred.append(partial(self._arrive, life, call))
        else:
            call()

    def pause(self, short_s: float) -> float:
        if self.world.chance(self.dawdles):
            return self.world.rng.uniform(0.5, 20.0)
        return self.world.rng.uniform(0.1, 1.0) * short_s

    # --- actions --------------------------------------------------------------------------

    def perform(self, action: a.Effect) -> None:
        match action:
            case a.SendReport(report):
                if self.connection is not None:
                    self.connection.send_report(report)
            case a.CloseLink(_, refused):
                self._hang_up(refused=refused)
            case a.KeepCluster(cluster):
                if self.dies(Deed.WRITES, "KeepCluster", When.BEFORE):
                    return
                self.cluster = cluster
                self.dies(Deed.WRITES, "KeepCluster", When.AFTER)
            case a.UseSettings() | a.UseUsers():
                pass
            case a.CreateTask(task, prepare):
                self.later(self.pause(0.02), partial(self._make_folder, task, prepare))
            case a.AskMembers(questions):
                if self.vouching is not None:
                    self.vouching.ask(self, questions)
            case a.StoreRecord(task, record):
                self._records[task] = record
            case a.SendToShim(task, command):
                if isinstance(command, ShimHostfile):
                    held = self.state.tasks[task] if self.state is not None else None
                    assert held is not None
                    assert held.arrange is not None
                    self.ground.plan_taken(self.name, task, held.arrange.fabric)
                self._order_shim(task, command)
            case a.ArrangeNetwork(task, _):
                self.later(self.pause(0.01), self.names.arranging(task))
            case a.ReleasePort():
                pass
            case a.WatchPeers(task, arrange):
                if self.vouching is not None:
                    self.vouching.watch_peers(self, task, arrange)
                else:
                    self.health.watch_peers(task)
            case a.TakeStacks(task, look):
                seen = s.StacksObserved(self.health.stacks(task, look))
                self.later(self.pause(0.01), partial(self.feed, seen))
            case a.WatchTraffic(task, _):
                self.traffic.watch(task)
            case a.RestoreNetwork(task):
                self.later(self.pause(0.01), self.names.restoring(task))
            case a.RemoveTask(task):
                self.later(self.pause(0.01), partial(self._remove, task))
            case a.SetTimer(timer, at):
                self._timers[timer] = at
                delay_s = max(0.0, at - self._now().mono) / self.machine.rate
                self.later(delay_s, partial(self._timer, timer, at))
            case _:
                assert_never(action)

    def _store_records(self) -> None:
        """Write what the turn has to store: at once, so that the course is that of a quick disk.

        Agents that vouch have a slow one.
        """
        records, self._records = self._records, {}
        for task, record in records.items():
            if self.vouching is None:
                self._store(task, record)
                continue
            self._stored_at = max(self._stored_at, self.world.now) + self.pause(0.2)
            later_s = self._stored_at - self.world.now
            self.later(later_s, partial(self._store, task, record))

    def _store(self, task: TaskId, record: TaskRecord) -> None:
        folder = self.machine.folders.get(task)
        if folder is None or self.dies(Deed.WRITES, "StoreRecord", When.BEFORE):
            return
        folder.memory = record
        if self.dies(Deed.WRITES, "StoreRecord", When.AFTER):
            return
        self.feed(s.RecordStored(task, record))

    def _timer(self, timer: a.Timer, at: float) -> None:
        if self._timers.get(timer) == at:
            del self._timers[timer]
            self.feed(s.TimerFired(timer))

    def _make_folder(self, task: TaskId, prepare: PrepareTask) -> None:
        self.ground.task_created(self.name, task)
        if self.dies(Deed.WRITES, "CreateTask", When.BEFORE):
            return
        if task in self.machine.folders:
            self._shim_failed(s.ShimFailed(task, "the folder exists"))
            return
        if self.world.chance(self.spawn_fails):
            self.world.met["spawn_failed"] += 1
            self._shim_failed(s.ShimFailed(task, "cannot fork"))
            return
        if prepare.gpus:
            self.look_at_gpus()
        sound = {gpu.uuid for gpu in usable(self.machine.devices())}
        if not sound.issuperset(prepare.gpus):
            self.world.met["gpu_gone"] += 1
            self._shim_failed(s.ShimFailed(task, "a GPU does not answer", "gpu_gone"))
            return
        folder = self.machine.make_folder(prepare)
        if self.dies(Deed.WRITES, "CreateTask", When.AFTER):
            return
        interfaces = self.machine.interfaces()
        fabric = self.machine.fabric
        probes = bool(fabric.ports)
        known = None if probes else fabric
        self.feed(s.TaskPlaced(task, folder.paths, folder.ports, interfaces, known))
        if probes:
            probed = s.TaskObserved(task, s.TaskChanges(fabric=fabric))
            self.later(self.pause(0.05), partial(self.feed, probed))
        self.later(self.pause(0.01), partial(self._start_shim, task))
        self.progress.watch(task)
        self.health.watch(task)

    def look_at_gpus(self) -> None:
        if self.up and not self.frozen:
            self.feed(s.NodeObserved(NodeChanges(devices=self.machine.devices())))

    def rewire(self, *, rewired: bool) -> None:
        """The machine is in another network; its agent notices when that has settled."""
        if self.machine.rewired is rewired:
            return
        self.machine.rewired = rewired
        self.machine.interfaces()
        if self.up:
            self.later(1.0, self._look_at_network)

    def _look_at_network(self) -> None:
        self.feed(s.NodeObserved(NodeChanges(interfaces=self.machine.interfaces())))

    def _start_shim(self, task: TaskId) -> None:
        if task in self.machine.folders and self.machine.folders[task].shim is None:
            self.machine.start_shim(task)

    def _order_shim(self, task: TaskId, command: ShimCommand) -> None:
        folder = self.machine.folders.get(task)
        shim = folder.shim if folder is not None else None
        if shim is None:
            return
        if isinstance(command, ShimLease) and command.until is not None:
            # Agent and shim share a clock, which here is the world's.
            until = (command.until - self._clock_offset) / self.machine.rate
            command = ShimLease(command.ttl_s, command.grace_s, until)
        queue_until = self._busy_shims.get(task, 0.0)
        if isinstance(command, ShimLease) and queue_until <= self.world.now:
            self.machine.tell(task, command)
            return
        # The host file travels with the command after it.
        takes_s = (
            0.0001 if isinstance(command, ShimHostfile) else self.world.rng.uniform(0.0001, 0.002)
        )
        at = max(queue_until, self.world.now + takes_s)
        self._busy_shims[task] = at
        # The shim reads a message in its socket even if the agent dies.
        self.world.at(at - self.world.now, partial(self.machine.tell, task, command))

    def _remove(self, task: TaskId) -> None:
        if self.dies(Deed.WRITES, "RemoveTask", When.BEFORE):
            return
        self.ground.removed(self.name, task)
        self.machine.remove(task)
        if self.dies(Deed.WRITES, "RemoveTask", When.AFTER):
            return
        self._busy_shims.pop(task, None)
        self.feed(s.TaskRemoved(task))

    # --- shims ----------------------------------------------------------------------------

    def _shim_reported(self, life: int, task: TaskId, status: ShimStatus) -> None:
        delay_s = self.world.rng.uniform(0.0001, 0.002)
        self.world.at(delay_s, partial(self._arrive, life, partial(self._hear, task, status)))

    def _hear(self, task: TaskId, status: ShimStatus) -> None:
        over = status.phase in (ShimPhase.CLEANED, ShimPhase.REFUSED)
        self.feed(s.ShimReported(task, status, over and writes_nothing(self.world, task)))
        self._ship_if_over(task, status)

    def _shim_failed(self, failed: s.ShimFailed) -> None:
        self.feed(failed)
        self._ship_once(failed.task)

    def _ship_if_over(self, task: TaskId, status: ShimStatus) -> None:
        if status.phase in (ShimPhase.CLEANED, ShimPhase.REFUSED):
            self._ship_once(task)

    def _ship_once(self, task: TaskId) -> None:
        if task not in self._shipping:
            self._shipping.add(task)
            self.later(self.pause(1.0), partial(self._ship, task))

    def _ship(self, task: TaskId) -> None:
        """The rest of the log is on its way: that takes a connection."""
        if self.state is None or task not in self.state.tasks:
            return
        if self.state.tasks[task].no_output:
            return
        if not self.state.welcomed or not self.network.reachable(self.name):
            self.later(2.0, partial(self._ship, task))
            return
        self.ground.stored.add(task)
        self.feed(s.LogsStored(task))

    # --- the link -------------------------------------------------------------------------

    def _dial_after(self, delay_s: float) -> None:
        self._dials += 1
        self.later(delay_s, partial(self._dial, self._dials))

    def _dial(self, number: int) -> None:
        if self.connection is not None or number != self._dials:
            return
        rng = self.world.rng
        if not self.coordinator.listening or not self.network.reachable(self.name):
            self._dial_after(rng.uniform(0.3, 5.0))
            return
        connection = self.connection = self.network.connect(self.name)
        connection.on_command = partial(self._command, connection)
        connection.on_agent_end = partial(self._lost, connection)
        self.coordinator.accept(connection, f"10.0.0.{self.name}")
        self.feed(s.LinkUp())

    def _command(self, connection: Connection, command: Command) -> None:
        if self.up and self.connection is connection:
            self.known = True
            name = type(command).__name__
            if not self.dies(Deed.TAKES, name, When.BEFORE):
                self.feed(s.CommandReceived(command))
                self.dies(Deed.TAKES, name, When.AFTER)

    def _lost(self, connection: Connection) -> None:
        if self.up and self.connection is connection:
            self.connection = None
            self.feed(s.LinkDown())
            self._dial_after(self.world.rng.uniform(0.05, 2.0))

    def _hang_up(self, *, refused: bool) -> None:
        if self.connection is None:
            return
        self.connection.close_agent()
        self.connection = None
        self.later(0.0, partial(self.feed, s.LinkDown()))
        self._dial_after(REFUSED_PAUSE_S if refused else self.world.rng.uniform(0.05, 2.0))


def _sent(action: a.Effect) -> str | None:
    """The kind of message that an action sends, if it sends one."""
    match action:
        case a.SendReport(report):
            return type(report).__name__
        case a.SendToShim(_, command):
            return type(command).__name__
        case _:
            return None
