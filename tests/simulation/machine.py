"""Hardware of a node: folders that survive everything except their loss, shims, ports, a boot
id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from agent.core.inputs import TaskFound, TaskPaths
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimCommand, ShimHostfile, ShimPhase, ShimStatus
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.control_channel import Inventory, PrepareTask, with_devices
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from tests.simulation.crashes import Deed, Point, When, Who
from tests.simulation.programs import Programs
from tests.simulation.rails import fabric_of
from tests.simulation.shim import Shim
from tests.simulation.truth import Truth
from tests.simulation.world import World

PORTS = range(20_000, 20_012)


@dataclass(slots=True)
class Folder:
    """A task's folder: its manifest and its shim (or what that left)."""

    paths: TaskPaths
    ports: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    checkpoints: bool = False  # its job says where it writes them
    lease_s: float | None = None
    memory: TaskRecord | None = None
    shim: Shim | None = None
    record: ShimStatus | None = None


@dataclass(slots=True)
class Machine:
    """`reported` passes reports of shims to the attached agent, if there is one."""

    world: World
    truth: Truth
    programs: Programs
    node: NodeName
    inventory: Inventory
    rate: float = 1.0  # how fast its monotonic clock runs
    beside: list[Machine] = field(default_factory=list)  # machines that are the same host
    boots: int = 1
    powered: bool = True
    folders: dict[TaskId, Folder] = field(default_factory=dict)
    blocks: set[TaskId] = field(default_factory=set)  # in its hosts file; survive a boot
    broken: set[str] = field(default_factory=set)  # GPUs, by UUID
    unwritable: float = 0.0  # how often a task's host file cannot be written
    rewired: bool = False  # its only card is in another network
    wired: list[tuple[float, str]] = field(default_factory=list)  # since when, which address
    reported: Callable[[TaskId, ShimStatus], None] | None = None

    @property
    def boot_id(self) -> str:
        return f"{self.node}-boot-{self.boots}"

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the shared network, and the one that every machine has and no other can reach."""
        address = (
            f"10.{int(self.rewired)}.0.{1 + int(self.inventory.machine_id.rpartition('-')[2])}"
        )
        if not self.wired or self.wired[-1][1] != address:
            self.wired.append((self.world.now, address))
        return (
            Interface("docker0", InterfaceKind.VIRTUAL, ("172.17.0.1/16",)),
            Interface("eth0", InterfaceKind.ETHERNET, (f"{address}/24",)),
        )

    @property
    def fabric(self) -> NodeFabric:
        return fabric_of(self.world, self.node)

    def described(self) -> Inventory:
        seen = msgspec.structs.replace(self.inventory, interfaces=self.interfaces())
        return with_devices(seen, self.devices()) if seen.devices else seen

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return what a look at them finds now."""
        return tuple(
            msgspec.structs.replace(gpu, fault="does not answer")
            if gpu.uuid in self.broken
            else gpu
            for gpu in self.inventory.devices
        )

    def had(self, address: str, since: float) -> bool:
        """True if the address was this machine's at that moment or after it."""
        ends = [begin for begin, _ in self.wired[1:]] + [float("inf")]
        return any(
            mine == address and end >= since
            for (_, mine), end in zip(self.wired, ends, strict=True)
        )

    def free_ports(self, count: int) -> tuple[int, ...]:
        """Ports on which nothing listens now, as found by binding them."""
        if count == 0:
            return ()
        taken = {
            folder.shim.listen_port
            for machine in [self, *self.beside]
            for folder in machine.folders.values()
            if folder.shim is not None and folder.shim.listening and folder.shim.occupied
        }
        free = [port for port in PORTS if port not in taken]
        return tuple(sorted(self.world.rng.sample(free, min(count, len(free)))))

    def make_folder(self, prepare: PrepareTask) -> Folder:
        task, ports = prepare.task, self.free_ports(prepare.ports)
        base = f"/tasks/{task}"
        paths = TaskPaths(base, f"{base}/scratch", f"{base}/output", f"{base}/hostfile")
        folder = self.folders[task] = Folder(
            paths,
            ports,
            prepare.gpus,
            checkpoints=prepare.checkpoint_dir is not None,
            lease_s=prepare.lease_s,
        )
        return folder

    def start_shim(self, task: TaskId) -> None:
        shim = Shim(
            self.world, self.truth, self.programs, self.node, self.rate, task, self._changed
        )
        shim.gpus = self.folders[task].gpus
        self.folders[task].shim = shim
        shim.company()
        self._changed(shim)

    def attach(self, reported: Callable[[TaskId, ShimStatus], None]) -> list[TaskFound]:
        """An agent starts: what earlier lives left, and from now on what changes."""
        self.reported = reported
        found = []
        for task, folder in self.folders.items():
            shim = folder.shim
            if shim is None or (shim.dead and folder.record is None):
                self._bury(task, folder)
            elif not shim.dead:
                shim.company()
            status = folder.record if shim is None or shim.dead else shim.document()
            assert status is not None
            found.append(
                TaskFound(
                    task,
                    status,
                    folder.paths,
                    folder.ports,
                    fabric=self.fabric,
                    gpus=folder.gpus,
                    lease_s=folder.lease_s,
                    record=folder.memory,
                )
            )
        return found

    def detach(self) -> None:
        self.reported = None
        for folder in self.folders.values():
            if folder.shim is not None and not folder.shim.dead:
                folder.shim.alone()

    def remove(self, task: TaskId) -> None:
        folder = self.folders.pop(task, None)
        if folder is not None and folder.shim is not None:
            folder.shim.dead = True

    def kill_shim(self, task: TaskId) -> None:
        """kill -9 of a shim: the agent ends what it owned; without an agent its unit does."""
        folder = self.folders[task]
        if folder.shim is None or folder.shim.dead or folder.record is not None:
            return
        folder.shim.killed()
        self.world.at(0.02, partial(self._sweep, task))

    def power_off(self) -> None:
        self.powered = False
        self.reported = None
        for folder in self.folders.values():
            if folder.shim is not None:
                folder.shim.power_off()

    def power_on(self) -> None:
        self.powered = True
        self.boots += 1

    def _sweep(self, task: TaskId) -> None:
        folder = self.folders.get(task)
        if folder is None or not self.powered or folder.record is not None:
            return
        self._bury(task, folder)
        assert folder.record is not None
        self._report(task, folder.record)

    def _bury(self, task: TaskId, folder: Folder) -> None:
        if folder.shim is not None:
            folder.shim.bury()
            folder.record = folder.shim.record
        if folder.record is None:
            folder.record = ShimStatus(task=task, phase=ShimPhase.CLEANED, stopped_by="shim_lost")

    def _changed(self, shim: Shim) -> None:
        folder = self.folders.get(shim.task)
        if folder is None or folder.shim is not shim or shim.dead:
            return
        phase = shim.phase.value
        if self._dies(shim, Deed.WRITES, phase, When.BEFORE):
            return
        if shim.record is not None:
            folder.record = shim.record
        self._report(shim.task, shim.document())
        self._dies(shim, Deed.WRITES, phase, When.AFTER)

    def tell(self, task: TaskId, command: ShimCommand) -> None:
        """A command reaches a shim, if there is one."""
        folder = self.folders.get(task)
        shim = folder.shim if folder is not None else None
        name = type(command).__name__
        if shim is None or shim.dead or self._dies(shim, Deed.TAKES, name, When.BEFORE):
            return
        if isinstance(command, ShimHostfile) and self.world.chance(self.unwritable):
            self.world.met["plan_unwritable"] += 1
            shim.refuse_plan()
        else:
            shim.handle(command)
        self._dies(shim, Deed.TAKES, name, When.AFTER)

    def _dies(self, shim: Shim, deed: Deed, what: str, when: When) -> bool:
        crashes = self.world.crashes
        if crashes is None or shim.dead or not crashes.due(Who.SHIM, deed, what, when):
            return False
        self.world.log(f"{self.node} {shim.task} {Point(Who.SHIM, deed, what, when)}")
        if when is When.BEFORE and deed is Deed.WRITES:
            shim.record = None
        shim.killed()
        self.world.at(0.02, partial(self._sweep, shim.task))
        return True

    def _report(self, task: TaskId, status: ShimStatus) -> None:
        if self.reported is not None:
            self.reported(task, status)
