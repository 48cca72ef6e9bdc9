"""Keeps one task on this node: its folder, its shim, and what the two say, from first to last."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.core.inputs import Input, PlanRefused, ShimReported, TaskFound, TaskPaths, TaskRemoved
from agent.core.shim_protocol import (
    WRITES_HOSTFILE,
    ShimCommand,
    ShimHostfile,
    ShimKill,
    ShimPhase,
    ShimStatus,
    StoppedBy,
)
from agent.leftovers.processes import kill_leftovers, leftover_processes
from agent.logs.shipper import LogShipper
from agent.monitors.hangs.monitor import HangMonitor
from agent.monitors.traffic.samplers import STREAM, TrafficSamplers
from agent.shims.connection import ShimConnection, ShimUnreachable, connect, speak
from agent.taskdirs.taskdirs import TaskDirs
from agent.tasks.adoption import FoundTask, Ownership, examine
from muster.daemon.errors import FileError
from muster.protocol.control_channel import Refusal
from muster.protocol.fabric import NodeFabric
from muster.protocol.ids import TaskId
from muster.protocol.refusal_codes import RefusalCode

# A shim that goes after its release is gone within a millisecond or two.
_PAUSE_FIRST_S: Final = 0.002
_PAUSE_MAX_S: Final = 1.0
# Between two tries to end what the kernel holds, and to remove what cannot be removed.
_AGAIN_S: Final = 30.0

_EXAMINERS: Final = ThreadPoolExecutor(256, "examiner")
"""Each may wait for a minute until processes are gone that the kernel holds: nobody else is to wait
for its thread meanwhile."""

_log = structlog.get_logger("agent.task")


@dataclass(frozen=True, slots=True)
class Hostfile:
    """Text for the task's host file."""

    text: str


Order = ShimCommand | Hostfile


class TaskSupervisor:
    """One task. Orders are carried out in order; `run` ends when the task's folder is gone."""

    def __init__(
        self,
        task: TaskId,
        folders: TaskDirs,
        logs: LogShipper,
        proofs: TrafficSamplers,
        hangs: HangMonitor,
        post: Callable[[Input], None],
        found: tuple[TaskPaths, tuple[int, ...], NodeFabric, tuple[str, ...]] | None = None,
    ) -> None:
        """`found`: paths and ports of a task that an earlier life of the agent began, the node's
        fabric, and the GPUs of the task."""
        self.task = task
        self.ports: tuple[int, ...] = () if found is None else found[1]
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
        self._connection: ShimConnection | None = None
        self._orders: deque[Order] = deque()
        self._telling = False  # what is ordered now goes with it
        self._writing: asyncio.Task[None] | None = None
        self._removal = asyncio.Event()
        self._statuses: deque[ShimStatus] = deque()  # heard, and not said
        self._waiting = False  # for the last figures of its traffic
        self._complaint = ""  # the last one that was logged

    def order(self, order: Order) -> None:
        """Carried out when those before it have been; for a shim that has gone there are none."""
        self._orders.append(order)
        self._tell_soon()

    def remove(self) -> None:
        """Remove the task's folder once its shim has gone."""
        self._removal.set()

    async def run(self, new: socket.socket | None = None) -> None:
        """Speak with the shim until it has gone, then wait to be removed. `new`: our end of the
        connection that a shim was given with its task."""
        removed = await self._follow_shim(new)
        self._orders.clear()
        if removed:
            self._post(TaskRemoved(self.task))
        else:
            await self.run_failed()

    async def run_failed(self) -> None:
        """There is no shim: what remains is the folder."""
        await self._removal.wait()
        self._logs.drop(self.task)
        while True:
            try:
                await asyncio.to_thread(self._folders.remove, self.task)
                break
            except FileError as error:
                _log.error("folder_not_removed", task=self.task, why=str(error))
                await asyncio.sleep(_AGAIN_S)
        self._post(TaskRemoved(self.task))

    async def _follow_shim(self, new: socket.socket | None) -> bool:
        """True when the folder was removed, too, as that had been ordered."""
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
            # Nothing that the shim's record could tell is news when all is known and stored.
            over = self._removal.is_set() and self._last is not None and self._last.phase.terminal
            if over:
                self._logs.drop(self.task)
            # Never "still running" for a shim that is dead: the lock of the folder tells.
            looking = asyncio.get_running_loop().run_in_executor(_EXAMINERS, self._examine, over)
            try:
                found, removed = await looking
            except OSError as error:
                # For want of descriptors, most often.
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
        """A shim that was given its connection waits to be told what to do, and says nothing."""
        connection = await speak(self._folder, new, self._heard)
        self._heard(ShimStatus(self.task, ShimPhase.NEW))
        return connection

    def _examine(self, over: bool) -> tuple[FoundTask, bool]:
        """In a thread: the task's truth, and whether its folder was removed, which is wanted where
        it is `over`."""
        try:
            found = examine(self._folder)
        except FileNotFoundError:
            return self._without_folder(), False
        if not over or found.ownership is not Ownership.ENDED:
            return found, False
        try:
            self._folders.remove(self.task)
        except FileError:
            # It is tried again, and told of.
            return found, False
        return found, True

    def _without_folder(self) -> FoundTask:
        """Somebody has removed it, and with it the record of an end that was not told. What a dead
        shim left is known by its mark."""
        status = self._last
        if status is None or not status.phase.terminal:
            held = kill_leftovers(
                remain for remain in leftover_processes() if remain.task == self.task
            )
            status = ShimStatus(
                self.task,
                ShimPhase.STUCK if held else ShimPhase.CLEANED,
                stopped_by=StoppedBy.SHIM_LOST,
                survivors=tuple(held),
            )
        _log.error("folder_of_task_gone", task=self.task, folder=str(self._folder))
        return FoundTask(self.task, self._folder, Ownership.LOST, status)

    async def _converse(self, connection: ShimConnection) -> None:
        self._connection = connection
        self._tell()
        try:
            await connection.ended
        except (msgspec.DecodeError, ValueError) as error:
            _log.error("shim_not_understood", task=self.task, why=str(error))
            await asyncio.sleep(_PAUSE_MAX_S)
        finally:
            self._connection = None
            connection.close()
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None

    def _tell_soon(self) -> None:
        """What is ordered in one turn of the loop is told at once."""
        if not self._telling and self._connection is not None:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        if self._connection is None or self._writing is not None:
            return
        commands: list[ShimCommand | ShimHostfile] = []
        for order in self._orders:
            if not isinstance(order, Hostfile):
                commands.append(order)
            elif self._last is not None and self._last.v >= WRITES_HOSTFILE:
                commands.append(ShimHostfile(order.text))
            else:
                break
        if commands and not self._connection.send(*commands):
            # To be told to whoever answers next.
            return
        for _ in commands:
            self._orders.popleft()
        if self._orders:
            name = f"agent.task.{self.task}.write"
            self._writing = asyncio.get_running_loop().create_task(self._write(), name=name)

    async def _write(self) -> None:
        """The host file that is the first order, for an old shim; what comes after it is told
        then."""
        hostfile = self._orders[0]
        assert isinstance(hostfile, Hostfile)
        try:
            await asyncio.to_thread(self._folders.write_hostfile, self.task, hostfile.text)
            self._orders.popleft()
        except FileError as error:
            # As the shim itself refuses then.
            self._orders[0] = ShimKill()
            refusal = Refusal(RefusalCode.SPAWN_FAILED, str(error), node_fault=True)
            self._post(PlanRefused(self.task, refusal))
        self._writing = None
        self._tell()

    def _heard(self, status: ShimStatus) -> None:
        if status == self._last:
            # Its record says what its shim had said.
            return
        self._last = status
        self._statuses.append(status)
        if not self._waiting:
            self._take()

    def _take(self) -> None:
        """Say what was heard, in order; with a task's end goes what is known of its traffic."""
        self._waiting = False
        while self._statuses:
            status = self._statuses[0]
            ended = status.exit is not None or status.phase.terminal
            if ended and self._proofs.finish(self.task, self._take):
                self._waiting = True
                return
            adopts = self._found is not None
            self._say(self._statuses.popleft())
            if not adopts:
                self.known.set()
                continue
            then = partial(self._go_on, status)
            if self._proofs.resume(self.task, ended=ended, then=then):
                # Its log is not complete before that.
                self._waiting = True
                return
            self._adopted(status)

    def _go_on(self, status: ShimStatus) -> None:
        self._adopted(status)
        self._take()

    def _adopted(self, status: ShimStatus) -> None:
        """What can be known of a task that an earlier life began is known."""
        if status.phase.terminal:
            self._logs.complete(self.task, reported=False)
        self.known.set()

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
            (paths, ports, fabric, gpus), self._found = self._found, None
            # No status names it, and an earlier life may have sent some of it.
            self._logs.follow(self.task, self._folder, (STREAM,))
            self._post(TaskFound(self.task, status, paths, ports, fabric, gpus))
