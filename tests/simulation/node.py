"""One node: the real agent core, its shell made up, on a machine that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from agent.core import actions as a
from agent.core import stimuli as s
from agent.core.shim import ShimCommand, ShimLease, ShimPhase, ShimStatus
from agent.core.state import Identity, State
from agent.core.turn import turn
from muster.protocol.gpus import usable
from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.instant import Instant
from muster.protocol.messages import PORT_TAKEN, UNREACHABLE, Command, PrepareTask, Refusal
from tests.simulation.checkers import Checkers
from tests.simulation.coordinator import Coordinator
from tests.simulation.machine import Machine
from tests.simulation.network import Connection, Network
from tests.simulation.world import World

REFUSED_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeDoom:
    """Die at the next action of this kind, just before it; or stop there for `freeze_s`."""

    action: type[a.Action]
    freeze_s: float


class Node:
    """An agent daemon: up, down or stopped (SIGSTOP), with its connection and its timers."""

    def __init__(
        self,
        world: World,
        network: Network,
        coordinator: Coordinator,
        machine: Machine,
        checkers: Checkers,
    ) -> None:
        self.world = world
        self.network = network
        self.coordinator = coordinator
        self.machine = machine
        self.checkers = checkers
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
        self._clock_offset = 0.0
        self._dials = 0
        self._deferred: list[Callable[[], None]] = []
        self._timers: dict[a.Timer, float] = {}
        self._shipping: set[TaskId] = set()
        self._busy_shims: dict[TaskId, float] = {}
        self._arranging: dict[TaskId, int] = {}  # by task: which order of it is the last

    # --- its life -------------------------------------------------------------------------

    def start(self) -> None:
        """The daemon begins: it looks for what earlier lives left, then dials."""
        if self.up or not self.machine.powered:
            return
        self.up = True
        self._life += 1
        self._clock_offset = self.world.rng.uniform(0.0, 1e6)
        self._timers.clear()
        self._shipping.clear()
        self._arranging.clear()
        machine = self.machine
        self.state = State(
            Identity(
                self.name,
                f"id-{self.name}",
                machine.boot_id,
                "0.1.0",
                machine.described(),
                instance=f"{self.name}-{self._life}",
            ),
            cluster=self.cluster,
        )
        self.world.log(f"{self.name} agent starts")
        for task in machine.blocks - set(machine.folders):
            self._take_block(task)
        for found in machine.attach(partial(self._shim_reported, self._life)):
            self.feed(found)
            self._ship_if_over(found.task, found.status)
        self._dial_after(self.world.rng.uniform(0.0, 0.2))

    def crash(self, *, power: bool = False) -> None:
        """The daemon is gone; with `power`, so silently that nobody's kernel says so."""
        self.up = False
        self.frozen = False
        self.network.frozen[self.name] = False
        self.state = None
        self._deferred.clear()
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

    def feed(self, stimulus: s.Stimulus) -> None:
        if self.state is None:
            return
        self.world.steps += 1
        for action in turn(self.state, stimulus, self._now()):
            if self.doom is not None and isinstance(action, self.doom.action) and self._meet():
                return
            self._perform(action)

    def _meet(self) -> bool:
        """What was to come has come; returns whether the daemon is dead now."""
        doom, self.doom = self.doom, None
        assert doom is not None
        self.world.met[
            f"agent_{'stops' if doom.freeze_s else 'dies'}_in_{doom.action.__name__}"
        ] += 1
        if doom.freeze_s:
            # What it has begun to do, it does; and then nothing for long.
            self.freeze()
            self.world.at(doom.freeze_s, self.thaw)
            return False
        self.crash()
        self.world.at(self.world.rng.uniform(0.05, 3.0), self.start)
        return True

    def _now(self) -> Instant:
        mono = self.world.now * self.machine.rate + self._clock_offset
        return Instant(mono, self.world.wall())

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        """In this life of the daemon, and not while it is stopped."""
        self.world.at(delay_s, partial(self._arrive, self._life, call))

    def _arrive(self, life: int, call: Callable[[], None]) -> None:
        if not self.up or self._life != life:
            return
        if self.frozen:
            self._deferred.append(partial(self._arrive, life, call))
        else:
            call()

    def _pause(self, short_s: float) -> float:
        if self.world.chance(self.dawdles):
            return self.world.rng.uniform(0.5, 20.0)
        return self.world.rng.uniform(0.1, 1.0) * short_s

    # --- actions --------------------------------------------------------------------------

    def _perform(self, action: a.Action) -> None:
        match action:
            case a.SendReport(report):
                if self.connection is not None:
                    self.connection.send_report(report)
            case a.CloseLink(_, refused):
                self._hang_up(refused=refused)
            case a.KeepCluster(cluster):
                self.cluster = cluster
            case a.CreateTask(task, prepare):
                self._later(self._pause(0.02), partial(self._make_folder, task, prepare))
            case a.TellShim(task, command):
                self._tell_shim(task, command)
            case a.WriteHostfile(task, _):
                held = self.state.tasks[task] if self.state is not None else None
                assert held is not None
                assert held.arrange is not None
                self.checkers.plan_taken(self.name, task, held.arrange.fabric)
            case a.ArrangeNetwork(task, _):
                number = self._arranging[task] = self._arranging.get(task, 0) + 1
                self._later(self._pause(0.01), partial(self._arrange, task, number))
            case a.LetGo() | a.WatchTraffic() | a.WatchPeers():
                pass
            case a.RestoreNetwork(task):
                self._arranging[task] = self._arranging.get(task, 0) + 1
                self._later(self._pause(0.01), partial(self._restore, task))
            case a.RemoveTask(task):
                self._later(self._pause(0.01), partial(self._remove, task))
            case a.SetTimer(timer, at):
                self._timers[timer] = at
                delay_s = max(0.0, at - self._now().mono) / self.machine.rate
                self._later(delay_s, partial(self._timer, timer, at))
            case _:
                assert_never(action)

    def _timer(self, timer: a.Timer, at: float) -> None:
        if self._timers.get(timer) == at:
            del self._timers[timer]
            self.feed(s.TimerFired(timer))

    def _make_folder(self, task: TaskId, prepare: PrepareTask) -> None:
        self.checkers.task_created(self.name, task)
        if task in self.machine.folders:
            self.feed(s.ShimFailed(task, "the folder exists"))
            return
        if self.world.chance(self.spawn_fails):
            self.world.met["spawn_failed"] += 1
            self.feed(s.ShimFailed(task, "cannot fork"))
            return
        if prepare.gpus:
            self.look_at_gpus()
        sound = {gpu.uuid for gpu in usable(self.machine.devices())}
        if not sound.issuperset(prepare.gpus):
            self.world.met["gpu_gone"] += 1
            self.feed(s.ShimFailed(task, "a GPU does not answer", "gpu_gone"))
            return
        folder = self.machine.make_folder(prepare)
        interfaces = self.machine.interfaces()
        fabric = self.machine.fabric
        probes = bool(fabric.ports)
        known = None if probes else fabric
        self.feed(s.TaskPlaced(task, folder.paths, folder.ports, interfaces, known))
        if probes:
            self._later(self._pause(0.05), partial(self.feed, s.FabricSeen(task, fabric)))
        self._later(self._pause(0.01), partial(self._start_shim, task))

    def look_at_gpus(self) -> None:
        if self.up and not self.frozen:
            self.feed(s.GpusSeen(self.machine.devices()))

    def rewire(self, *, rewired: bool) -> None:
        """The machine is in another network; its agent notices when that has settled."""
        if self.machine.rewired is rewired:
            return
        self.machine.rewired = rewired
        self.machine.interfaces()
        if self.up:
            self._later(1.0, self._look_at_network)

    def _look_at_network(self) -> None:
        self.feed(s.NetworkSeen(self.machine.interfaces()))

    def _start_shim(self, task: TaskId) -> None:
        if task in self.machine.folders and self.machine.folders[task].shim is None:
            self.machine.start_shim(task)

    def _tell_shim(self, task: TaskId, command: ShimCommand) -> None:
        folder = self.machine.folders.get(task)
        shim = folder.shim if folder is not None else None
        if shim is None:
            return
        queue_until = self._busy_shims.get(task, 0.0)
        if isinstance(command, ShimLease) and queue_until <= self.world.now:
            shim.handle(command)
            return
        at = max(queue_until, self.world.now + self.world.rng.uniform(0.0001, 0.002))
        self._busy_shims[task] = at
        # What is in the socket is read, whatever becomes of the agent.
        self.world.at(at - self.world.now, partial(shim.handle, command))

    def _arrange(self, task: TaskId, number: int) -> None:
        """The host table is written, then every name of it resolved."""
        if self._arranging.get(task) != number:
            return
        self.machine.blocks.add(task)
        self.checkers.block_written(self.name, task)
        self._later(self._pause(0.02), partial(self._prove, task, number))

    def _prove(self, task: TaskId, number: int) -> None:
        if self._arranging.get(task) != number:
            return
        if self.world.chance(self.misnames):
            self.world.met["name_unresolved"] += 1
            refusal = Refusal("hosts_unresolved", "a peer has another address here")
            self.feed(s.NetworkRefused(task, refusal))
            return
        if self.world.chance(self.unmeets):
            launcher = parse_task_id(task)[2] == 0
            self.world.met["port_taken" if launcher else "launcher_unreachable"] += 1
            code = PORT_TAKEN if launcher else UNREACHABLE
            self.feed(s.NetworkRefused(task, Refusal(code, "as told", node_fault=not launcher)))
            return
        self.checkers.network_proved(task)
        self.feed(s.NetworkArranged(task))

    def _restore(self, task: TaskId) -> None:
        self._take_block(task)
        self.feed(s.NetworkRestored(task))

    def _take_block(self, task: TaskId) -> None:
        if task in self.machine.blocks:
            self.machine.blocks.remove(task)
            self.checkers.block_removed(self.name, task)

    def _remove(self, task: TaskId) -> None:
        self.checkers.removed(self.name, task)
        self.machine.remove(task)
        self._busy_shims.pop(task, None)
        self.feed(s.TaskRemoved(task))

    # --- shims ----------------------------------------------------------------------------

    def _shim_reported(self, life: int, task: TaskId, status: ShimStatus) -> None:
        delay_s = self.world.rng.uniform(0.0001, 0.002)
        self.world.at(delay_s, partial(self._arrive, life, partial(self._hear, task, status)))

    def _hear(self, task: TaskId, status: ShimStatus) -> None:
        self.feed(s.ShimReported(task, status))
        self._ship_if_over(task, status)

    def _ship_if_over(self, task: TaskId, status: ShimStatus) -> None:
        if status.phase in (ShimPhase.CLEANED, ShimPhase.REFUSED) and task not in self._shipping:
            self._shipping.add(task)
            self._later(self._pause(1.0), partial(self._ship, task))

    def _ship(self, task: TaskId) -> None:
        """The rest of the log is on its way: that takes a connection."""
        if self.state is None or task not in self.state.tasks:
            return
        if not self.state.welcomed or not self.network.reachable(self.name):
            self._later(2.0, partial(self._ship, task))
            return
        self.feed(s.LogsStored(task))

    # --- the link -------------------------------------------------------------------------

    def _dial_after(self, delay_s: float) -> None:
        self._dials += 1
        self._later(delay_s, partial(self._dial, self._dials))

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
            self.feed(s.CommandReceived(command))

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
        self._later(0.0, partial(self.feed, s.LinkDown()))
        self._dial_after(REFUSED_PAUSE_S if refused else self.world.rng.uniform(0.05, 2.0))
