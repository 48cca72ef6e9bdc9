"""Supervisor of one task on this node: its directory, its shim, and the messages between shim and
agent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Never

import msgspec
import structlog

from agent.core.inputs import (
    EpilogRan,
    Input,
    RecordStored,
    ShimReported,
    TaskFound,
    TaskPaths,
    TaskRemoved,
)
from agent.core.record import TaskRecord
from agent.core.shim_protocol import (
    ShimCommand,
    ShimPhase,
    ShimStatus,
    StoppedBy,
)
from agent.leftovers.fuse import abort_fuse
from agent.leftovers.kill import kill_everything_of
from agent.leftovers.processes import kill_leftovers, leftover_processes
from agent.logs.shipper import LogShipper
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.traffic.samplers import STREAM, TrafficSamplers
from agent.shim.system.cgroup import Cgroup
from agent.shims.connection import ShimConnection, ShimUnreachable, connect, speak
from agent.shims.shim_files import ShimIdentity, identity_of
from agent.taskdirs.taskdirs import TaskDirs
from agent.tasks.adoption import FoundTask, Ownership, examine
from muster.daemon.errors import FileError
from muster.protocol.ids import TaskId
from muster.protocol.observations.fabric import NodeFabric

# A shim that exits after its release is gone within a millisecond or two.
_PAUSE_FIRST_S: Final = 0.002
_PAUSE_MAX_S: Final = 1.0
# Pause between two attempts to end processes that SIGKILL does not end, and to remove a directory
# that cannot be removed.
_AGAIN_S: Final = 30.0
_STORE_AGAIN_S: Final = 1.0
# The shim checks processes that SIGKILL did not end once a second.
_FREED_S: Final = 5.0

_EXAMINERS: Final = ThreadPoolExecutor(256, "examiner")
"""Each thread may wait for a minute until the kernel lets processes go. Nothing else may wait for a
thread of this pool meanwhile."""

_log = structlog.get_logger("agent.task")


class Known(NamedTuple):
    """The content of a task's manifest, and the node's current fabric."""

    paths: TaskPaths
    ports: tuple[int, ...]
    fabric: NodeFabric
    gpus: tuple[str, ...]
    lease_s: float | None
    record: TaskRecord | None = None


class TaskSupervisor:
    """The supervisor of one task. Carries out orders in sequence; `run` returns once the task's
    directory is removed."""

    def __init__(
        self,
        task: TaskId,
        folders: TaskDirs,
        logs: LogShipper,
        proofs: TrafficSamplers,
        hangs: HangMonitor,
        post: Callable[[Input], None],
        found: Known | None = None,
    ) -> None:
        """`found`: what is known of a task that an earlier agent process started."""
        self.task = task
        self.ports: tuple[int, ...] = () if found is None else found.ports
        self.known = asyncio.Event()
        self._folder: Path = folders.path(task)
        self._folders = folders
        self._logs = logs
        self._proofs = proofs
        self._hangs = hangs
        self._post = post
        self._found = found
        self._is_adopted = found is not None
        self._last: ShimStatus | None = None
        # For the case that its folder is gone when its shim is.
        self._identity: ShimIdentity | None = None
        self._connection: ShimConnection | None = None
        self._orders: deque[ShimCommand] = deque()
        self._flush_due = False  # orders given now go with the next batch
        self._record: TaskRecord | None = None
        self._record_given = asyncio.Event()
        self._disk = threading.Lock()  # no record is written into a directory that is removed
        self._removal = asyncio.Event()
        self._statuses: asyncio.Queue[ShimStatus] = asyncio.Queue()  # received, not yet posted
        self._complaint = ""  # the last one that was logged
        self.epilog: Callable[[], Awaitable[str]] | None = None
        self._epilog_runs = asyncio.Lock()
        self.before_record: Callable[[TaskRecord], Awaitable[None]] | None = None

    def order(self, order: ShimCommand) -> None:
        """Queue an order. If the shim has exited, the order is dropped."""
        self._orders.append(order)
        self._flush_soon()

    def store(self, record: TaskRecord) -> None:
        """Write this record to disk; `store_records` does."""
        self._record = record
        self._record_given.set()

    async def store_records(self) -> Never:
        """Write each record that `store` gives, until cancelled. Answered by RecordStored."""
        while True:
            await self._record_given.wait()
            self._record_given.clear()
            record = self._record
            if record is None or self._removal.is_set():
                continue
            if self.before_record is not None:
                await self.before_record(record)
            try:
                await asyncio.to_thread(self._store, record)
            except FileError as error:
                _log.error("record_not_stored", task=self.task, why=str(error))
                await asyncio.sleep(_STORE_AGAIN_S)
                self._record_given.set()
            else:
                self._post(RecordStored(self.task, record))

    def _store(self, record: TaskRecord) -> None:
        with self._disk:
            self._folders.store(self.task, record)

    def _remove_folder(self) -> None:
        with self._disk:
            self._folders.remove(self.task)

    def remove(self) -> None:
        """Remove the task's directory once its shim has exited."""
        self._removal.set()

    async def run(self, new: socket.socket | None = None) -> None:
        """Talk to the shim until it has exited, then wait for the removal. `new`: our end of the
        connection that a new shim was given."""
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(self._report_statuses(), name=f"statuses.{self.task}")
            removed = await self._follow_shim(new)
            self._orders.clear()
            if removed:
                self._post(TaskRemoved(self.task))
            else:
                await self.run_failed()
            await self.run_epilog()
            reporting.cancel()

    async def run_failed(self) -> None:
        """Wait for the removal of a task that has no shim, and remove its directory."""
        await self._removal.wait()
        self._logs.drop(self.task)
        while True:
            try:
                await asyncio.to_thread(self._remove_folder)
                break
            except FileError as error:
                _log.error("folder_not_removed", task=self.task, why=str(error))
                await asyncio.sleep(_AGAIN_S)
        self._post(TaskRemoved(self.task))

    async def _follow_shim(self, new: socket.socket | None) -> bool:
        """Follow the shim until it has exited. Returns True if the directory is removed, too."""
        pause_s, blind_s = _PAUSE_FIRST_S, _PAUSE_MAX_S
        while True:
            try:
                if new is None:
                    connection = await connect(self._folder, self._heard)
                else:
                    connection = await self._speak_first(new)
            except ShimUnreachable:
                pass
            else:
                await self._converse(connection)
            new = None
            # If all is known and stored, the shim's record contains nothing new.
            over = self._removal.is_set() and self._last is not None and self._last.phase.terminal
            if over:
                self._logs.drop(self.task)
            # The directory's lock shows whether the shim is dead, so a dead one never counts as
            # running.
            looking = asyncio.get_running_loop().run_in_executor(_EXAMINERS, self._examine, over)
            try:
                found, removed = await looking
            except OSError as error:
                # Most often the agent lacks file descriptors.
                _log.error("task_not_examined", task=self.task, why=error.strerror)
                await asyncio.sleep(blind_s)
                blind_s = min(2 * blind_s, _AGAIN_S)
                continue
            if removed:
                return True
            if found.ownership is Ownership.ALIVE:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            if found.ownership is Ownership.LOST:
                _log.warning("shim_lost", task=self.task)
            assert found.status is not None
            self._heard(found.status)
            if found.status.phase.terminal:
                return False
            await asyncio.sleep(_AGAIN_S)

    async def _speak_first(self, new: socket.socket) -> ShimConnection:
        """Open the conversation: a shim that was given its connection waits for a command in
        silence."""
        connection = await speak(self._folder, new, self._heard)
        self._heard(ShimStatus(self.task, ShimPhase.NEW))
        return connection

    def _examine(self, over: bool) -> tuple[FoundTask, bool]:
        """Examine the task; runs in a thread. Returns True as second value if the directory was
        removed, which happens only if the task is `over`."""
        try:
            found = examine(self._folder)
        except FileNotFoundError:
            return self._without_folder(), False
        if not over or found.ownership is not Ownership.ENDED:
            return found, False
        try:
            self._remove_folder()
        except FileError:
            # `run_failed` tries again and logs the error.
            return found, False
        return found, True

    def _without_folder(self) -> FoundTask:
        """The status of a task whose directory somebody has removed, together with an unreported
        exit record."""
        status = self._last
        if status is None or not status.phase.terminal:
            held = self._kill()
            status = ShimStatus(
                self.task,
                ShimPhase.STUCK if held else ShimPhase.CLEANED,
                stopped_by=StoppedBy.SHIM_LOST,
                survivors=tuple(held),
            )
        _log.error("folder_of_task_gone", task=self.task, folder=str(self._folder))
        return FoundTask(self.task, self._folder, Ownership.LOST, status)

    def _identify(self) -> ShimIdentity | None:
        """The identity of the task's shim. Returns None if it cannot be read. Blocks."""
        try:
            return identity_of(self._folder)
        except OSError:
            return None

    def _kill(self) -> list[int]:
        """Kill all processes of the task, whose shim does not answer. Returns those that the kernel
        holds. Blocks."""
        known = self._identity
        if known is not None:
            return kill_everything_of(known.mark, Cgroup(known.cgroup) if known.cgroup else None)
        return kill_leftovers(remain for remain in leftover_processes() if remain.task == self.task)

    async def _converse(self, connection: ShimConnection) -> None:
        self._connection = connection
        self._flush()
        try:
            await connection.ended
        except (msgspec.DecodeError, ValueError) as error:
            _log.error("shim_not_understood", task=self.task, why=str(error))
            await asyncio.sleep(_PAUSE_MAX_S)
        finally:
            self._connection = None
            connection.close()

    def _flush_soon(self) -> None:
        """Send all orders of one turn of the event loop together."""
        if not self._flush_due and self._connection is not None:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._connection is None or not self._orders:
            return
        # If they cannot be sent, keep the orders for the next connection.
        if self._connection.send(*self._orders):
            self._orders.clear()

    def _heard(self, status: ShimStatus) -> None:
        if status == self._last:
            # The exit record repeats the shim's last status.
            return
        self._last = status
        self._statuses.put_nowait(status)

    async def _report_statuses(self) -> Never:
        """Post the received statuses in order, until cancelled. A task's final traffic evidence
        comes before its end."""
        while True:
            status = await self._next_status()
            ended = status.exit is not None or status.phase.terminal
            if self._identity is None and not ended and status.phase is not ShimPhase.NEW:
                self._identity = await asyncio.to_thread(self._identify)
            if ended:
                await self._proofs.finish(self.task)
            adopts = self._found is not None
            if status.phase.terminal and not adopts:
                await self.run_epilog()
            self._say(status)
            if adopts:
                await self._proofs.resume(self.task, ended=ended)
                if status.phase.terminal:
                    # Not earlier, because only now the task's NCCL log is complete.
                    self._logs.complete(self.task, reported=False)
            self.known.set()
            if status.phase.terminal:
                # Not earlier after a restart: the leases of other tasks may end before the agent
                # connects.
                await self.run_epilog()

    async def run_epilog(self) -> None:
        """Run the site's epilog, once: the processes of the task have ended. Waits for it. Posts
        its last line."""
        async with self._epilog_runs:
            epilog, self.epilog = self.epilog, None
            line = "" if epilog is None else await epilog()
            if line:
                self._post(EpilogRan(self.task, line))

    async def _next_status(self) -> ShimStatus:
        """Return the next status. If it names processes that survive SIGKILL because of a FUSE file
        system of their own, free them and wait for the status without them."""
        status = await self._statuses.get()
        loop = asyncio.get_running_loop()
        while status.phase is ShimPhase.STUCK:
            freeing = loop.run_in_executor(_EXAMINERS, abort_fuse, status.survivors)
            if not await freeing:
                break
            try:
                async with asyncio.timeout(_FREED_S):
                    status = await self._statuses.get()
            except TimeoutError:
                break
        return status

    def _say(self, status: ShimStatus) -> None:
        if status.complaint and status.complaint != self._complaint:
            self._complaint = status.complaint
            _log.warning("shim_complains", task=self.task, text=status.complaint)
        self._logs.follow(self.task, self._folder, status.streams)
        self._hangs.heard(self.task, self._folder, status)
        if self._found is None:
            no_output = status.phase.terminal and self._logs.complete(
                self.task, reported=not self._is_adopted
            )
            self._post(ShimReported(self.task, status, no_output))
        else:
            known, self._found = self._found, None
            # No status lists the traffic stream, and an earlier agent process may have sent part of
            # it.
            self._logs.follow(self.task, self._folder, (STREAM,))
            self._post(TaskFound(self.task, status, *known))
