"""All tasks of this node: create, adopt, command and remove them as the core orders."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.code.fetch import CodeError, CodeFetcher
from agent.code.store import DamagedError
from agent.config import PortSettings
from agent.core.inputs import (
    NO_FABRIC,
    Input,
    ShimFailed,
    TaskChanges,
    TaskObserved,
    TaskPaths,
    TaskPlaced,
)
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimCommand, ShimUser
from agent.gang.fence import Fence, FenceError, leased
from agent.gang.ports import NoPortsError, free_ports
from agent.hooks.site_hooks import PrologError, SiteHooks
from agent.logs.shipper import LogShipper
from agent.monitors.checkpoints import CheckpointMonitor
from agent.monitors.fabric import FabricMonitor
from agent.monitors.gpu_utilization import GpuUtilizationMonitor
from agent.monitors.gpus import GpuDirtyError, GpuGoneError, GpuMonitor
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.traffic.samplers import TrafficSamplers
from agent.probe.network import NetworkProbe
from agent.shims.backend import Shims
from agent.shims.limits import NO_LIMITS, TaskLimits
from agent.taskdirs.task_accounts import TaskAccounts, UserRefusedError
from agent.taskdirs.taskdirs import TASKS, DiskFullError, Owner, TaskDirs, user_of
from agent.tasks import preflight
from agent.tasks.adoption import Ownership, examine
from agent.tasks.fd_budget import NoDescriptorsError, check_descriptors
from agent.tasks.preflight import PreflightError
from agent.tasks.supervisor import Known, TaskSupervisor
from muster.daemon.errors import DaemonError, FileError
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.text import named

_ANSWER_S: Final = 10.0
_NAMED: Final = 16
# A shim's files are files, and its folders are folders.
_NOT_OF_A_SHIM: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP})

_log = structlog.get_logger("agent.tasks.registry")


class TaskRegistry:
    """All tasks whose directory is on this node, each with a supervisor."""

    def __init__(
        self,
        folders: TaskDirs,
        owners: TaskAccounts,
        shims: Shims,
        logs: LogShipper,
        ports: PortSettings,
        network: NetworkProbe,
        fabric: FabricMonitor,
        proofs: TrafficSamplers,
        hangs: HangMonitor,
        gpus: GpuMonitor,
        checkpoints: CheckpointMonitor,
        idle: GpuUtilizationMonitor,
        code: CodeFetcher,
        fence: Fence,
        hooks: SiteHooks,
        limits: Callable[[PrepareTask], TaskLimits],
        post: Callable[[Input], None],
        owner: TaskOwner,
    ) -> None:
        self._folders = folders
        self._owners = owners
        self._shims = shims
        self._logs = logs
        self._range = ports
        self._network = network
        self._fabric = fabric
        self._proofs = proofs
        self._hangs = hangs
        self._gpus = gpus
        self._checkpoints = checkpoints
        self._idle = idle
        self._code = code
        self._fence = fence
        self._hooks = hooks
        self._limits = limits
        self._post = post
        self._owner = owner
        self._supervisors: dict[TaskId, TaskSupervisor] = {}

    def __len__(self) -> int:
        return len(self._supervisors)

    async def adopt(self) -> None:
        """Take over the tasks of an earlier agent process. Returns once the state of each is
        known."""
        supervisors = []
        found = await asyncio.to_thread(self._folders.found)
        fabric = await self._fabric.look() if found else NO_FABRIC
        for task in found:
            supervisor = await asyncio.to_thread(self._adopted, task, fabric)
            if supervisor is not None:
                supervisors.append(supervisor)
                self._supervise(supervisor, supervisor.run)
        others = await asyncio.to_thread(self._folders.others, list(self._supervisors))
        if others:
            _log.warning(
                "not_tasks",
                folder=str(self._folders.root / TASKS),
                names=named(others, _NAMED),
                why="no task made them; the agent leaves them as they are",
            )
        for supervisor in supervisors:
            # Wait for running tasks: without one, the agent's Hello would report it as lost.
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await supervisor.known.wait()
                    break
                except TimeoutError:
                    _log.warning("shim_silent", task=supervisor.task, waited_s=_ANSWER_S)
        if supervisors:
            _log.info("tasks_adopted", tasks=[supervisor.task for supervisor in supervisors])

    def create(self, task: TaskId, prepare: PrepareTask) -> None:
        """Start a task. Answered by TaskPlaced and ShimReported, or by ShimFailed."""
        supervisor = TaskSupervisor(
            task, self._folders, self._logs, self._proofs, self._hangs, self._post
        )
        self._supervise(supervisor, lambda: self._begin(supervisor, prepare))

    def store(self, task: TaskId, record: TaskRecord) -> None:
        """Write the record of a task to disk. Answered by RecordStored."""
        supervisor = self._supervisors.get(task)
        if supervisor is not None:
            supervisor.store(record)

    def send(self, task: TaskId, command: ShimCommand) -> None:
        """Send a command to the task's shim. If the shim has exited, the command is dropped."""
        supervisor = self._supervisors.get(task)
        if supervisor is not None:
            supervisor.order(command)

    def remove(self, task: TaskId) -> None:
        """Remove the task's directory once its shim has exited. Answered by TaskRemoved."""
        supervisor = self._supervisors.get(task)
        if supervisor is not None:
            supervisor.remove()

    def _supervise(self, supervisor: TaskSupervisor, work: Callable[[], Awaitable[None]]) -> None:
        self._supervisors[supervisor.task] = supervisor
        supervisor.before_record = partial(self._fence.follow, supervisor.task)

        async def kept() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    records = group.create_task(supervisor.store_records())
                    await work()
                    records.cancel()
            finally:
                self._checkpoints.end(supervisor.task)
                self._idle.end(supervisor.task)
            # Not when the agent ends: the job goes on behind its fence.
            self._supervisors.pop(supervisor.task, None)
            await self._fence.drop(supervisor.task)

        self._owner.spawn(kept(), name=f"task.{supervisor.task}")

    def _adopted(self, task: TaskId, fabric: NodeFabric) -> TaskSupervisor | None:
        """Create the supervisor of an existing task; runs in a thread. Returns None if the
        directory has no manifest and its shim is dead, or no shim made what it has."""
        manifest = self._folders.manifest(task)
        # The supervisor ends the processes of a dead shim. That may take a minute, but all
        # supervisors do it at once.
        if manifest is None and self._is_without_shim(task):
            return None
        # The exit record survives a power failure, the manifest may not: report the end anyway.
        paths = TaskPaths("", "", "", "") if manifest is None else manifest.paths
        ports = () if manifest is None else manifest.ports
        gpus = () if manifest is None else manifest.prepare.gpus
        lease_s = None if manifest is None else manifest.prepare.lease_s
        if manifest is not None:
            self._checkpoints.begin(task, manifest.prepare.checkpoint_dir)
            self._idle.begin(task, manifest.prepare.idle, gpus)
        self._proofs.adopt(task)
        record = None if manifest is None else manifest.record
        known = Known(paths, ports, fabric, gpus, lease_s, record)
        supervisor = TaskSupervisor(
            task, self._folders, self._logs, self._proofs, self._hangs, self._post, found=known
        )
        if manifest is not None:
            with contextlib.suppress(OSError):
                uid = user_of(self._folders.path(task)).uid
                supervisor.epilog = partial(self._hooks.after, manifest.prepare, uid)
        return supervisor

    def _is_without_shim(self, task: TaskId) -> bool:
        """True if a folder without a manifest has no record of a shim, either. It is removed, or
        left if something else has made what is in it."""
        try:
            if examine(self._folders.path(task)).ownership is not Ownership.LOST:
                return False
            self._folders.remove(task)
        except OSError as error:
            if error.errno not in _NOT_OF_A_SHIM:
                raise
        except FileError as error:
            _log.warning("folder_without_manifest", task=task, done="nothing", why=str(error))
        else:
            _log.warning("folder_without_manifest", task=task, done="removed")
        return True

    async def _begin(self, supervisor: TaskSupervisor, prepare: PrepareTask) -> None:
        task = supervisor.task
        taken = {port for other in self._supervisors.values() for port in other.ports}
        try:
            await self._gpus.check(prepare)
            job_owner = await self._owners.of(prepare)
            await preflight.look(prepare, self._folders.root, job_owner)
            uid = os.geteuid() if job_owner is None else job_owner.uid
            prolog = await self._hooks.before(prepare, uid)
            supervisor.epilog = partial(self._hooks.after, prepare, uid)
            placed = await self._placed(prepare, taken, job_owner)
            supervisor.ports = placed.ports
            await self._fence.lease(task, leased(uid, placed.ports, prepare))
            self._post(msgspec.structs.replace(placed, prolog=prolog))
            self._checkpoints.begin(task, prepare.checkpoint_dir)
            self._idle.begin(task, prepare.idle, prepare.gpus)
            if placed.fabric is None:
                self._owner.spawn(self._look(task), name=f"fabric.{task}")
            limits = NO_LIMITS
            if prepare.gpus:
                limits = await asyncio.to_thread(self._limits, prepare)
            connection = await self._spawn(task, limits)
        except (DaemonError, OSError, RuntimeError, MemoryError) as error:
            # Also raised if this process runs out of descriptors, threads or memory: the agent goes
            # on.
            await supervisor.run_epilog()
            self._logs.complete(task)
            self._post(ShimFailed(task, str(error), _code(error)))
            await supervisor.run_failed()
            return
        await supervisor.run(connection)

    async def _spawn(self, task: TaskId, limits: TaskLimits) -> socket.socket | None:
        """Our end of the connection to a new shim. Returns None if the supervisor has to connect by
        itself."""
        if not self._shims.gives:
            await self._shims.spawn(self._folders.path(task), limits=limits)
            return None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._shims.spawn(self._folders.path(task), theirs, limits)
        except BaseException:
            ours.close()
            raise
        return ours

    async def _look(self, task: TaskId) -> None:
        fabric = await self._fabric.look(task)
        self._post(TaskObserved(task, TaskChanges(fabric=fabric)))

    async def _placed(
        self, prepare: PrepareTask, taken: set[int], owner: Owner | None
    ) -> TaskPlaced:
        """Create the task's directories, with a copy of the job's code if it travels."""
        manifest = await self._code.fetch(prepare)
        if manifest is None:
            return await asyncio.to_thread(self._place, prepare, taken, owner, None)
        ended = threading.Event()
        try:
            copy = partial(self._code.store.copy, manifest, stopped=ended.is_set)
            try:
                return await asyncio.to_thread(self._place, prepare, taken, owner, copy)
            except DamagedError as error:
                _log.warning("code_damaged", task=prepare.task, why=str(error))
            # The stored code is damaged on this disk: fetch it again, once.
            await self._code.repair(prepare, manifest)
            return await asyncio.to_thread(self._place, prepare, taken, owner, copy)
        finally:
            # An agent that stops waits for its threads. An interrupted copy leaves no files, so the
            # next agent starts the task from the beginning.
            ended.set()
            self._code.release(manifest)
            await self._code.clean()

    def _place(
        self,
        prepare: PrepareTask,
        taken: set[int],
        owner: Owner | None,
        copy_code: Callable[[Path, Owner | None], None] | None,
    ) -> TaskPlaced:
        """Create the task's directories; runs in a thread, because the disk may be slow."""
        check_descriptors()
        ports = free_ports(prepare.ports, self._range.first, self._range.last, taken)
        paths = self._folders.create(prepare, ports, owner, copy_code)
        try:
            interfaces = self._network.interfaces()
        except OSError as error:
            _log.warning("network_not_read", task=prepare.task, why=str(error))
            interfaces = None
        fabric = None if self._fabric.there() else NO_FABRIC
        user = None if owner is None else ShimUser(owner.name, owner.uid)
        return TaskPlaced(prepare.task, paths, ports, interfaces, fabric, user)


def _code(error: Exception) -> RefusalCode:
    match error:
        case GpuGoneError():
            return RefusalCode.GPU_GONE
        case GpuDirtyError():
            return RefusalCode.GPU_DIRTY
        case DiskFullError():
            return RefusalCode.NO_SPACE
        case PreflightError():
            return RefusalCode.PREFLIGHT_FAILED
        case PrologError():
            return RefusalCode.PROLOG_FAILED
        case NoPortsError():
            return RefusalCode.NO_PORTS
        case NoDescriptorsError():
            return RefusalCode.NO_DESCRIPTORS
        case UserRefusedError():
            return RefusalCode.USER_REFUSED
        case FenceError():
            return RefusalCode.NOT_FENCED
        case CodeError() | DamagedError():
            return RefusalCode.NO_CODE
        case _:
            return RefusalCode.SPAWN_FAILED
