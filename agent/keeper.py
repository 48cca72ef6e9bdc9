"""Keeps one task on this node: its folder, its shim, and what the two say, from first to last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import msgspec
import structlog

from agent.core.shim import ShimCommand, ShimKill, ShimStatus
from agent.core.stimuli import (
    PlanRefused,
    ShimReported,
    Stimulus,
    TaskFound,
    TaskPaths,
    TaskRemoved,
)
from agent.folders import Folders
from agent.logs.shipper import LogShipper
from agent.process.adopt import Ownership, examine
from agent.process.shim import ShimConnection, ShimUnreachable, connect
from agent.proof.proofs import Proofs
from muster.daemon.errors import FileError
from muster.protocol.fabric import NodeFabric
from muster.protocol.ids import TaskId
from muster.protocol.messages import Refusal

# A shim that goes after its release is gone within a millisecond or two.
_PAUSE_FIRST_S: Final = 0.002
_PAUSE_MAX_S: Final = 1.0
# Between two tries to end what the kernel holds, and to remove what cannot be removed.
_AGAIN_S: Final = 30.0

_log = structlog.get_logger("agent.task")


@dataclass(frozen=True, slots=True)
class Hostfile:
    """Text for the task's host file."""

    text: str


Order = ShimCommand | Hostfile


class Keeper:
    """One task. Orders are carried out in order; `run` ends when the task's folder is gone."""

    def __init__(
        self,
        task: TaskId,
        folders: Folders,
        logs: LogShipper,
        proofs: Proofs,
        post: Callable[[Stimulus], None],
        found: tuple[TaskPaths, tuple[int, ...], NodeFabric] | None = None,
    ) -> None:
        """`found`: paths and ports of a task that an earlier life of the agent began, and the
        node's fabric."""
        self.task = task
        self.ports: tuple[int, ...] = () if found is None else found[1]
        self.known = asyncio.Event()
        self._folder: Path = folders.path(task)
        self._folders = folders
        self._logs = logs
        self._proofs = proofs
        self._post = post
        self._found = found
        self._last: ShimStatus | None = None
        self._orders: deque[Order] = deque()
        self._ordered = asyncio.Event()
        self._removal = asyncio.Event()

    def order(self, order: Order) -> None:
        """Carried out when those before it have been; for a shim that has gone there are none."""
        self._orders.append(order)
        self._ordered.set()

    def remove(self) -> None:
        """Remove the task's folder once its shim has gone."""
        self._removal.set()

    async def run(self) -> None:
        """Speak with the shim until it has gone, then wait to be removed."""
        await self._follow_shim()
        self._orders.clear()
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

    async def _follow_shim(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                connection = await connect(self._folder)
            except ShimUnreachable:
                pass
            else:
                await self._converse(connection)
            # Never "still running" for a shim that is dead: the lock of the folder tells.
            found = await asyncio.to_thread(examine, self._folder)
            if found.ownership is Ownership.ALIVE:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            if found.ownership is Ownership.LOST:
                _log.warning("shim_lost", task=self.task)
            assert found.status is not None
            await self._hear(found.status)
            if found.status.phase.terminal:
                return
            await asyncio.sleep(_AGAIN_S)

    async def _converse(self, connection: ShimConnection) -> None:
        name = f"agent.task.{self.task}.tell"
        teller = asyncio.get_running_loop().create_task(self._tell(connection), name=name)
        try:
            async for status in connection.statuses():
                await self._hear(status)
        except (msgspec.DecodeError, ValueError) as error:
            _log.error("shim_not_understood", task=self.task, why=str(error))
            await asyncio.sleep(_PAUSE_MAX_S)
        finally:
            teller.cancel()
            (end,) = await asyncio.gather(teller, return_exceptions=True)
            await connection.close()
        if isinstance(end, Exception) and not isinstance(end, ShimUnreachable):
            raise end

    async def _tell(self, connection: ShimConnection) -> Never:
        while True:
            while self._orders:
                count = len(self._orders)
                commands = []
                for order in list(self._orders):
                    command = await self._write(order) if isinstance(order, Hostfile) else order
                    if command is not None:
                        commands.append(command)
                await connection.send(*commands)
                for _ in range(count):
                    self._orders.popleft()
            self._ordered.clear()
            await self._ordered.wait()

    async def _write(self, hostfile: Hostfile) -> ShimCommand | None:
        try:
            await asyncio.to_thread(self._folders.write_hostfile, self.task, hostfile.text)
        except FileError as error:
            # Without its host file a job must not start.
            self._post(PlanRefused(self.task, Refusal("spawn_failed", str(error), node_fault=True)))
            return ShimKill()
        return None

    async def _hear(self, status: ShimStatus) -> None:
        if status == self._last:
            # Its record says what its shim had said.
            return
        self._last = status
        ended = status.exit is not None or status.phase.terminal
        adopted = self._found is not None
        if ended:
            # With its end goes what is known of its traffic.
            await self._proofs.finish(self.task)
        self._heard(status)
        if adopted:
            await self._proofs.resume(self.task, ended=ended)
        self.known.set()

    def _heard(self, status: ShimStatus) -> None:
        if status.complaint:
            _log.warning("shim_complains", task=self.task, text=status.complaint)
        self._logs.follow(self.task, self._folder, status.streams)
        if status.phase.terminal:
            self._logs.complete(self.task)
        if self._found is None:
            self._post(ShimReported(self.task, status))
        else:
            (paths, ports, fabric), self._found = self._found, None
            self._post(TaskFound(self.task, status, paths, ports, fabric))
