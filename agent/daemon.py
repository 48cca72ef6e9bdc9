"""The agent daemon: owns the state, runs `turn` on each input, and carries out the effects.

Everything runs in one thread except for work that waits for a disk or a name server. When an agent
exits, its jobs keep running, and the next agent finds them by their directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Never, assert_never

import structlog
from msgspec import structs

from agent.central_settings import SettingsInForce
from agent.code.fetch import CodeFetcher
from agent.code.store import CodeStore
from agent.config import AgentConfig
from agent.core.effects import (
    ArrangeNetwork,
    AskMembers,
    CloseLink,
    CreateTask,
    Effect,
    KeepCluster,
    ReleasePort,
    RemoveTask,
    RestoreNetwork,
    SendReport,
    SendToShim,
    SetTimer,
    StoreRecord,
    TakeStacks,
    Timer,
    UseSettings,
    UseUsers,
    WatchPeers,
    WatchTraffic,
)
from agent.core.inputs import CommandReceived, Input, LogsStored, NodeObserved, TimerFired
from agent.core.state import AgentIdentity, State
from agent.core.turn import turn
from agent.gang.fence import fence_of, fenced_in
from agent.gang.host_names import GangHostNames, mode_of
from agent.gang.peer_pings import PeerPings
from agent.gang.ports import check_range
from agent.gang.setup import GangSetup
from agent.gang.vouch_socket import VouchSocket, open_socket
from agent.hooks.site_hooks import SiteHooks, check_hooks
from agent.identity import identify, node_name, read_name
from agent.leftovers import units as left_units
from agent.leftovers.inventory import list_leftovers
from agent.leftovers.processes import describe, kill_leftovers, leftover_processes
from agent.link.control import ControlLink
from agent.link.dialer import Dialer
from agent.link.inbox import InputQueue
from agent.link.renewal import CertificateRenewal
from agent.logs.shipper import LogShipper
from agent.monitors.checkpoints import CheckpointMonitor
from agent.monitors.disks import DiskMonitor
from agent.monitors.fabric import FabricMonitor
from agent.monitors.gpu_utilization import GpuUtilizationMonitor
from agent.monitors.gpus import GpuMonitor
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.hangs.stack_dumps import StackDumper
from agent.monitors.hardware.monitor import HardwareMonitor
from agent.monitors.interfaces import InterfaceMonitor
from agent.monitors.interpreter import InterpreterMonitor
from agent.monitors.job_user import JobUserMonitor
from agent.monitors.traffic.rdma_ports import RdmaPortMonitor, RdmaPorts
from agent.monitors.traffic.samplers import TrafficSamplers
from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.gpus import use_of
from agent.probe.network import NetworkProbe
from agent.shims.apart import check_hiding, not_apart
from agent.shims.backend import Shims, by_units, options_of, restricted, unenforced_limits
from agent.shims.forked import ForkServer
from agent.shims.limits import TaskLimits
from agent.shims.systemd import SystemdUnits
from agent.single_agent import single_agent_lock
from agent.taskdirs.task_accounts import TaskAccounts
from agent.taskdirs.taskdirs import TaskDirs, user_of
from agent.tasks.part_limits import read_limits
from agent.tasks.registry import TaskRegistry
from muster.daemon.abandoned_thread import wait_at_most
from muster.daemon.clock import Clock, SystemClock
from muster.daemon.durable_files import lock_directory, write_atomic
from muster.daemon.errors import TaskEndedError
from muster.daemon.logging import configure
from muster.daemon.network_fs import network_kind
from muster.daemon.sd_notify import Notifier
from muster.daemon.task_owner import TaskOwner
from muster.daemon.timers import Timers
from muster.protocol.link.control_channel import (
    Inventory,
    NodeChanges,
    NodeObservations,
    PrepareTask,
    Refused,
    Welcome,
)
from muster.protocol.observations.gpus import GpuDevice, usable
from muster.protocol.observations.node_settings import NodeSetting

_CLUSTER: Final = "cluster"
_LEFTOVERS_S: Final = 10.0

_log = structlog.get_logger("agent")


class Agent:
    """All components of one agent, wired together; `run` serves until stopped."""

    def __init__(
        self,
        config: AgentConfig,
        identity: AgentIdentity,
        inventory: Inventory,
        owners: TaskAccounts,
        clock: Clock,
        network: NetworkProbe,
        own: Mapping[str, str],
    ) -> None:
        """Needs a running event loop. `own`: settings of the node's file. Raises DaemonError."""
        self._clock = clock
        self._settings = SettingsInForce(config, own)
        peers = open_socket(config.peer_port, config.state_dir, shared=config.shared_host)
        identity = replace(identity, peer_port=0 if peers is None else peers.getsockname()[1])
        self._state = State(
            identity,
            NodeObservations(inventory, settings=self._settings.shown()),
            cluster=read_name(config.state_dir / _CLUSTER),
        )
        self._inbox = InputQueue()
        self.vouches = VouchSocket(peers, self._state, self._inbox.post)
        self._owners = owners
        self._timers: Timers[Timer] = Timers(
            clock, lambda timer: self._turn(TimerFired(timer)), ring=self._inbox.wake
        )
        self._dialer = Dialer(
            config.coordinator, config.token_file, config.tls_ca, config.certificate
        )
        self._link = ControlLink(self._dialer, self._inbox)
        self._renewal = CertificateRenewal(
            self._dialer, config.certificate, identity.node, clock, self._link.connect_again
        )
        self._logs = LogShipper(
            self._dialer,
            clock,
            identity.node,
            identity.agent_id,
            lambda task: self._inbox.post(LogsStored(task)),
        )
        self._code = CodeFetcher(
            CodeStore(config.state_dir / "code"), self._dialer, clock, config.peer_port
        )
        self._shims = _shims(config)
        self.fence = fence_of(config, identity.agent_id)
        self._probe = network
        self._config = config
        post = self._inbox.post
        self._disks = DiskMonitor(config.state_dir, post)
        self._job_user = JobUserMonitor(owners, config, post, self.fence.problem, inventory)
        self._interpreter = InterpreterMonitor(config.python, owners, post)
        self._idle = GpuUtilizationMonitor(
            lambda: use_of(FsRoot(config.fabric.root)), self._gpus_of_node, clock, self._inbox.post
        )

    async def run(self, stop: asyncio.Event, notifier: Notifier) -> None:
        """Serve until `stop`; jobs keep running. Raises DaemonError."""
        config, identity = self._config, self._state.identity
        folders = await asyncio.to_thread(_folders_of, config, self._owners)
        async with self._dialer, TaskOwner("agent") as owner:
            self._proofs = TrafficSamplers(
                config.fabric.root,
                folders,
                self._logs,
                self._clock,
                self._inbox.post,
                owner,
            )
            hangs = self._hangs = HangMonitor(
                self._clock, self._inbox.post, config.hangs.period_s, config.fabric.root
            )
            self._stack_dumper = StackDumper(hangs, folders, self._clock, self._inbox.post, owner)
            hardware = HardwareMonitor(
                config.hardware.kmsg,
                config.state_dir,
                identity.boot_id,
                self._clock,
                self._devices,
                self._inbox.post,
            )
            hardware.saw(self._devices())
            self._hooks = self._site_hooks(hardware, owner)
            gpus = GpuMonitor(config, self._inbox.post, hardware.saw)
            fabric = FabricMonitor(config, self._inbox.post)
            self._tasks = TaskRegistry(
                folders,
                self._owners,
                self._shims,
                self._logs,
                config.ports,
                self._probe,
                fabric,
                self._proofs,
                hangs,
                gpus,
                CheckpointMonitor(
                    lambda task: user_of(folders.path(task)),
                    self._inbox.post,
                    asyncio.get_running_loop().call_soon_threadsafe,
                ),
                self._idle,
                self._code,
                self.fence,
                self._hooks,
                self._limits,
                self._inbox.post,
                owner,
            )
            hosts = GangHostNames(config, folders.hosts_file)
            self._neighbours = PeerPings(identity.node, self._inbox.post, owner)
            self._network = GangSetup(hosts, self.fence, self._inbox.post, owner)
            owner.spawn(self._own(), name="owner", eternal=True)
            owner.spawn(self._watchdog(notifier), name="watchdog", eternal=True)
            interfaces = InterfaceMonitor(self._probe, self._inbox.post).run()
            owner.spawn(interfaces, name="interfaces", eternal=True)
            owner.spawn_monitor(self._disks.run, name="disks")
            owner.spawn_monitor(partial(hardware.run, gpus.stir), name="hardware")
            ports = RdmaPortMonitor(
                RdmaPorts(config.fabric.root, awaited=fabric.awaited),
                self._clock,
                self._inbox.post,
                changed=fabric.stir,
            )
            try:
                await self._shims.start()
                await self._take_over(folders)
                # The Hello contains the node's RDMA equipment, so probe it before the link opens.
                await fabric.look()
                # The Hello also reports whether the node can start any job, and has torch.
                await asyncio.gather(self._job_user.look(), self._interpreter.look())
                await self._inbox.settled()
                owner.spawn_monitor(fabric.run, name="fabric")
                if fabric.devices():
                    owner.spawn_monitor(ports.run, name="ports")
                owner.spawn(self._logs.run(), name="logs", eternal=True)
                monitors = {
                    "job_user": self._job_user.run,
                    "gpus": gpus.run,
                    "idle": self._idle.run,
                    "hangs": hangs.run,
                    "certificate": self._renewal.run,
                    "interpreter": self._interpreter.run,
                    "fence": self.fence.watch,
                }
                for name, run in monitors.items():
                    owner.spawn_monitor(run, name=name)
                owner.spawn(self._link.run(), name="link", eternal=True)
                _log.info("serving", node=identity.node, coordinator=config.coordinator)
                notifier.ready(f"node {identity.node}, coordinator {config.coordinator}")
                await owner.run_until(stop)
            except TaskEndedError as error:
                # An internal error: put the traceback into the log.
                _log.critical("task_ended", why=str(error), exc_info=error.__cause__)
                raise
            finally:
                notifier.stopping()
                _log.info("stopping", jobs_left_running=len(self._tasks))
                await owner.close()
                hosts.close()
                await asyncio.gather(self._code.peers.close(), self._shims.close())

    def _site_hooks(self, hardware: HardwareMonitor, owner: TaskOwner) -> SiteHooks:
        hooks = SiteHooks(self._config, self._clock, hardware.tell)
        if self._config.health_check is not None:
            owner.spawn_monitor(hooks.check_health, name="health_check")
        return hooks

    def _devices(self) -> tuple[GpuDevice, ...]:
        return self._state.observed.inventory.devices

    def _limits(self, prepare: PrepareTask) -> TaskLimits:
        inventory, config = self._state.observed.inventory, self._config
        tree = FsRoot(config.fabric.root)
        return read_limits(prepare, inventory, tree, config.part_limits, config.devices_allowed)

    async def _take_over(self, folders: TaskDirs) -> None:
        """Adopt the tasks of an earlier agent process, and begin to remove what else it left."""
        await asyncio.to_thread(self._code.store.prepare)
        left = await asyncio.to_thread(folders.set_aside)
        await self._network.begin(await asyncio.to_thread(folders.found))
        await self.fence.begin(await asyncio.to_thread(fenced_in, folders))
        await self._tasks.adopt()
        # Jobs decide how long both take, and the leases of other jobs must not end meanwhile.
        await wait_at_most(_LEFTOVERS_S, _end_remains, self._config)
        await wait_at_most(0.0, folders.remove_left, left)

    def _gpus_of_node(self) -> list[str]:
        return [gpu.uuid for gpu in usable(self._devices())]

    async def _own(self) -> Never:
        # Timers first: if the process was suspended, due timers are older than the next input.
        await self._inbox.serve(self._turn, self._timers.fire_due)

    def _turn(self, received: Input) -> None:
        for action in turn(self._state, received, self._clock.now()):
            self._perform(action)
        if isinstance(received, CommandReceived):
            self._note(received)

    def _perform(self, action: Effect) -> None:
        match action:
            case SendReport():
                self._link.send(action.report)
            case CloseLink():
                self._link.close(action.why, refused=action.refused)
            case KeepCluster():
                name = f"{action.cluster}\n".encode()
                write_atomic(self._config.state_dir / _CLUSTER, name, 0o600)
            case UseSettings():
                self._use(action.given)
            case UseUsers():
                self._job_user.use(action.users)
            case CreateTask():
                self._tasks.create(action.task, action.prepare)
                _log.info("task_accepted", task=action.task)
            case StoreRecord():
                self._tasks.store(action.task, action.record)
            case AskMembers():
                self.vouches.ask(action.questions)
            case SendToShim():
                self._tasks.send(action.task, action.command)
            case ArrangeNetwork():
                self._network.arrange(action.task, action.plan)
            case ReleasePort():
                self._network.let_go(action.task)
            case WatchTraffic():
                self._proofs.begin(action.plan)
            case WatchPeers():
                self._neighbours.watch(action.task, action.plan)
            case TakeStacks():
                self._stack_dumper.begin(action.look)
            case RestoreNetwork():
                self._neighbours.end(action.task)
                self._network.restore(action.task)
            case RemoveTask():
                _log.info("task_removed", task=action.task)
                self._tasks.remove(action.task)
            case SetTimer():
                self._timers.set(action.timer, action.at)
            case _:
                assert_never(action)

    def _use(self, given: Sequence[NodeSetting]) -> None:
        """Use what the coordinator gives. Tasks that have a shim keep their limits."""
        before = self._settings.config
        self._settings.use(given)
        config = self._settings.config
        if config.log != before.log:
            configure(level=config.log.level, fmt=config.log.format)
        self._hangs.look_every(config.hangs.period_s)
        self._hooks.use(config)
        self._shims.use(options_of(config))
        self._inbox.post(NodeObserved(NodeChanges(settings=self._settings.shown())))

    def _note(self, heard: CommandReceived) -> None:
        match heard.command:
            case Welcome() as welcome if self._state.welcomed:
                _log.info("welcomed", epoch=welcome.epoch, session=welcome.session)
                self._logs.welcomed(welcome.heartbeat_s)
            case Refused() as refused:
                _log.error("refused", code=refused.code, why=refused.text)
            case _:
                pass

    async def _watchdog(self, notifier: Notifier) -> Never:
        """Ping the service manager's watchdog through the inbox: a hung owner sends none."""
        if notifier.watchdog_s is None:
            await asyncio.Event().wait()
        while True:
            await self._inbox.settled()
            notifier.watchdog()
            await asyncio.sleep(notifier.watchdog_s or 1.0)


async def serve(
    config: AgentConfig,
    stop: asyncio.Event,
    environ: Mapping[str, str] = os.environ,
    own: Mapping[str, str] | None = None,
) -> None:
    """Run this node's agent until `stop`. `own` has the settings of the node's own file, each with
    its origin. Raises DaemonError with a message for a person."""
    with lock_directory(config.state_dir):
        config = structs.replace(config, node=node_name(config))
        with single_agent_lock(config, environ):
            owners = TaskAccounts(config)
            _warn_of_network(config)
            _warn_of_token(config)
            _check_ports(config)
            check_hooks(config)
            network = NetworkProbe(config.address, config.interface)
            identity, inventory = await asyncio.to_thread(identify, config, network)
            await asyncio.to_thread(check_hiding, config)
            apart = await asyncio.to_thread(not_apart, config)
            inventory = structs.replace(inventory, unenforced=unenforced_limits(config) | apart)
            clock = SystemClock()
            agent = Agent(config, identity, inventory, owners, clock, network, own or {})
            with contextlib.closing(agent.vouches), contextlib.closing(agent.fence):
                await agent.run(stop, Notifier(environ))


def _shims(config: AgentConfig) -> Shims:
    """Choose the backend that starts shims. Raises SpawnError."""
    options, units = options_of(config), by_units(config)
    _log.info("shims", backend="systemd" if units else "forked")
    if not units and os.geteuid() == 0 and restricted():
        _log.warning(
            "shims_in_sandbox",
            why="this agent forks its shims, so its jobs inherit the sandbox of its unit "
            "(NoNewPrivileges): install systemd/forked-shims.conf, or set shims to systemd",
        )
    return SystemdUnits(options) if units else ForkServer(options)


def _folders_of(config: AgentConfig, owners: TaskAccounts) -> TaskDirs:
    """Open the task directories; runs in a thread. Logs leftovers of earlier agents before
    removal."""
    _name_traces(config)
    hosts_file = config.hosts.file if mode_of(config) == "private" else None
    return TaskDirs(
        config.state_dir, hosts_file, others=owners.others, private_tmp=config.has_private_tmp
    )


def _name_traces(config: AgentConfig) -> None:
    """Log leftovers that the start will remove. Not on a shared host, whose agents share hosts file
    and cgroups."""
    if config.shared_host:
        return
    for what in list_leftovers(config.state_dir, config.hosts.file):
        _log.warning("left_by_an_earlier_life", what=what, done="removed at the start")


def _end_remains(config: AgentConfig) -> None:
    """Log processes and units that belong to no task directory. End them unless another agent on
    this machine may need them."""
    units = left_units.left_units()
    if units:
        staying = [unit.name for unit in units] if config.shared_host else left_units.stop(units)
        _log.warning("units_left", what=left_units.words(units), still_there=staying)
    found = leftover_processes()
    if not found:
        return
    if config.shared_host:
        _log.warning("left_by_an_earlier_life", what=describe(found), done="nothing: shared_host")
        return
    held = kill_leftovers(found)
    done = f"SIGKILL does not end {held}: reboot this machine" if held else "ended"
    _log.warning("left_by_an_earlier_life", what=describe(found), done=done)


def _check_ports(config: AgentConfig) -> None:
    first, last = config.ports.first, config.ports.last
    usable = check_range(first, last)
    if usable < last - first + 1:
        _log.warning(
            "ports_left_out",
            usable=usable,
            why=f"some of the ports {first} to {last} are in the kernel's own range "
            "(net.ipv4.ip_local_port_range), from which any program gets ports",
        )


def _warn_of_network(config: AgentConfig) -> None:
    kind = network_kind(config.state_dir)
    if kind:
        _log.warning(
            "state_dir_on_network",
            why=f"{config.state_dir} is on a network file system ({kind}): while that hangs "
            "nothing can be started or ended here, and two nodes may use the same one; name a "
            "folder on a disk of this machine with state_dir",
        )


def _warn_of_token(config: AgentConfig) -> None:
    with contextlib.suppress(OSError):  # the place that reads the file reports the error
        if config.token_file is not None and config.token_file.stat().st_mode & 0o077:
            _log.warning(
                "token_file_open",
                why=f"other users can read {config.token_file}, jobs among them, and let in "
                f"agents of their own with it; run: chmod 600 {config.token_file}",
            )
