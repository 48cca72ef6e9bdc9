"""Traffic samplers of this node's tasks, one per task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.core.inputs import Input
from agent.core.shim_protocol import ShimStream
from agent.logs.shipper import LogShipper
from agent.monitors.traffic.counters import CounterReader, interfaces
from agent.monitors.traffic.nccl_log import LOG
from agent.monitors.traffic.sampler import Sampler, WatchedTraffic, kept
from agent.probe.fabric.rdma_devices import CLASS
from agent.taskdirs.taskdirs import NCCL, TaskDirs
from muster.daemon.clock import Clock
from muster.daemon.task_owner import TaskOwner
from muster.fabric.counters import Totals
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask
from muster.protocol.link.log_channel import StreamKind
from muster.protocol.observations.fabric import TaskFabric

FILE: Final = "%h.%p"
"""File name pattern of NCCL: host and process."""
STREAM: Final = ShimStream(StreamKind.NCCL.value, LOG)
"""NCCL's log, which no shim status mentions."""

_log = structlog.get_logger("agent.proof")


def log_file(folder: Path) -> str:
    """Return NCCL_DEBUG_FILE for a task directory."""
    return f"{folder / NCCL}/{FILE}"


class TrafficSamplers:
    """Starts, resumes and ends samplers."""

    def __init__(
        self,
        root: Path,
        folders: TaskDirs,
        logs: LogShipper,
        clock: Clock,
        post: Callable[[Input], None],
        owner: TaskOwner,
    ) -> None:
        self._root = root
        self._folders = folders
        self._logs = logs
        self._clock = clock
        self._post = post
        self._owner = owner
        self._running: dict[TaskId, tuple[Sampler, asyncio.Task[None]]] = {}
        self._kept: dict[TaskId, WatchedTraffic] = {}

    def begin(self, plan: ArrangeTask) -> None:
        """The start gate of this task opens."""
        fabric = plan.fabric or TaskFabric()
        if plan.task in self._running:
            return
        unheard = _unheard(plan, self._folders.path(plan.task))
        if unheard is not None and not (self._root / CLASS).is_dir():
            return
        watched = WatchedTraffic(
            netdevs=fabric.netdevs or interfaces(self._root),
            unheard=unheard or "",
            totals=Totals(planned=fabric.hcas),
        )
        self._watch(plan.task, watched)

    def adopt(self, task: TaskId) -> None:
        """In a thread, read the state that an earlier agent process saved of the task."""
        watched = kept(self._folders.path(task))
        if watched is not None:
            self._kept[task] = watched

    async def resume(self, task: TaskId, *, ended: bool) -> None:
        """Resume an adopted task. For one that has `ended`, post its known figures and NCCL's lines
        since."""
        watched = self._kept.pop(task, None)
        if watched is None:
            return
        if ended:
            await self._last_look(task, self._sampler(task, watched), counters=False)
        else:
            self._watch(task, watched)

    async def finish(self, task: TaskId) -> None:
        """The task has ended: post its last figures, if there are any."""
        found = self._running.pop(task, None)
        if found is None:
            return
        sampler, running = found
        await self._last_look(task, sampler)
        # Not earlier, because it may have been in the middle of a sample.
        running.cancel()

    async def _last_look(self, task: TaskId, sampler: Sampler, *, counters: bool = True) -> None:
        try:
            await sampler.finish(counters=counters)
        except Exception:  # noqa: BLE001  a task's end is reported even without its figures
            _log.exception("traffic_not_read", task=task)

    def _watch(self, task: TaskId, watched: WatchedTraffic) -> None:
        sampler = self._sampler(task, watched)
        running = self._owner.spawn(sampler.run(), name=f"proof.{task}")
        self._running[task] = (sampler, running)
        if len(self._running) > 1:
            for other, _ in self._running.values():
                other.share()

    def _sampler(self, task: TaskId, watched: WatchedTraffic) -> Sampler:
        folder = self._folders.path(task)

        def lines_came() -> None:
            self._logs.follow(task, folder, (STREAM,))

        reader = CounterReader(self._root)
        return Sampler(task, folder, reader, watched, self._clock, self._post, lines_came)


def _unheard(plan: ArrangeTask, folder: Path) -> str | None:
    """Return why NCCL's lines will not be in our file, or None if they will."""
    env = plan.env
    if env.get("NCCL_DEBUG_FILE") == log_file(folder):
        return None
    if "NCCL_DEBUG" in env or "NCCL_DEBUG_FILE" in env:
        return "NCCL's log goes to the destination of the job's own NCCL_DEBUG"
    return "NCCL's log is disabled"
