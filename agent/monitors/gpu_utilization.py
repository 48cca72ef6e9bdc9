"""Monitor of GPU utilization: polls NVML for the jobs that want idle GPUs detected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Never

import structlog

from agent.core import gpu_idle
from agent.core.inputs import Input, TaskChanges, TaskObserved
from muster.daemon.clock import Clock
from muster.protocol.gpus import IdleGpus
from muster.protocol.ids import TaskId

EVERY_S: Final = 5.0
PATIENCE_S: Final = 30.0
"""If the driver has not answered for this long, its GPUs count as unreadable."""

_log = structlog.get_logger("agent.monitors.gpu_utilization")


class _Watched(NamedTuple):
    wanted: IdleGpus
    gpus: tuple[str, ...]  # by UUID; () means all GPUs of the node
    stretch: gpu_idle.IdleStretch = gpu_idle.IdleStretch()
    told: float | None = None


class GpuUtilizationMonitor:
    """Posts when a task's GPUs become idle or busy again.

    `read` blocks on the driver and returns percent by UUID, without unreadable GPUs. `all_gpus`
    returns the UUIDs for a task that has the whole node.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, int]],
        all_gpus: Callable[[], Iterable[str]],
        clock: Clock,
        post: Callable[[Input], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._read = read
        self._all_gpus = all_gpus
        self._clock = clock
        self._post = post
        self._every_s = every_s
        self._watched: dict[TaskId, _Watched] = {}
        self._begun = asyncio.Event()

    def begin(self, task: TaskId, wanted: IdleGpus | None, gpus: tuple[str, ...]) -> None:
        if wanted is not None and task not in self._watched:
            self._watched[task] = _Watched(wanted, gpus)
            self._begun.set()

    def end(self, task: TaskId) -> None:
        self._watched.pop(task, None)

    async def watch(self) -> Never:
        """Poll until cancelled."""
        while True:
            if not self._watched:
                self._begun.clear()
                await self._begun.wait()
            await self._look()
            await asyncio.sleep(self._every_s)

    async def _look(self) -> None:
        look = asyncio.get_running_loop().run_in_executor(None, self._read)
        try:
            async with asyncio.timeout(PATIENCE_S):
                self.heard(await asyncio.shield(look))
        except TimeoutError:
            _log.warning("gpus_not_read", why=f"NVML has not answered for {PATIENCE_S:g} s")
            self.heard({})
            # Wait for the hanging thread instead of starting a second one.
            await look

    def heard(self, used: Mapping[str, int]) -> None:
        """Process one reading of all GPUs."""
        at = self._clock.now().mono
        for task, watched in self._watched.items():
            gpus = watched.gpus or tuple(self._all_gpus())
            readings = [used.get(uuid) for uuid in gpus]
            stretch = gpu_idle.update(watched.stretch, readings, watched.wanted.util_below, at)
            told = gpu_idle.idle_since(stretch, watched.wanted.after_s)
            self._watched[task] = watched._replace(stretch=stretch, told=told)
            if told != watched.told:
                self._post(TaskObserved(task, TaskChanges(idle_since=told)))
