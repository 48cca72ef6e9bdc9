"""Monitor of GPU utilization: polls NVML for the jobs that want idle GPUs detected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from agent.core import gpu_idle
from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.monitors.monitor import Monitor
from muster.daemon.abandoned_thread import BlockingCall
from muster.daemon.clock import Clock
from muster.protocol.ids import TaskId
from muster.protocol.observations.gpus import IdleGpus

EVERY_S: Final = 5.0
PATIENCE_S: Final = 30.0
"""If the driver has not answered for this long, its GPUs count as unreadable."""

_log = structlog.get_logger("agent.monitors.gpu_utilization")


class _Watched(NamedTuple):
    wanted: IdleGpus
    gpus: tuple[str, ...]  # by UUID; () means all GPUs of the node
    stretch: gpu_idle.IdleStretch = gpu_idle.IdleStretch()


class GpuUtilizationMonitor(Monitor):
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
        super().__init__(post, every_s)
        self._reading = BlockingCall(read, "agent.monitors.gpu_utilization")
        self._all_gpus = all_gpus
        self._clock = clock
        self._watched: dict[TaskId, _Watched] = {}

    def begin(self, task: TaskId, wanted: IdleGpus | None, gpus: tuple[str, ...]) -> None:
        if wanted is not None and task not in self._watched:
            self._watched[task] = _Watched(wanted, gpus)
            self.stir()

    def end(self, task: TaskId) -> None:
        self._watched.pop(task, None)
        self._forget(task)

    async def look(self) -> None:
        if not self._watched:
            return
        try:
            self.heard(await self._reading.result(PATIENCE_S))
        except TimeoutError:
            _log.warning("gpus_not_read", why=f"NVML has not answered for {PATIENCE_S:g} s")
            self.heard({})
            # Wait for the hanging thread instead of starting a second one.
            await self._reading.result()

    def heard(self, used: Mapping[str, int]) -> None:
        """Process one reading of all GPUs."""
        at = self._clock.now().mono
        for task, watched in self._watched.items():
            gpus = watched.gpus or tuple(self._all_gpus())
            readings = [used.get(uuid) for uuid in gpus]
            stretch = gpu_idle.update(watched.stretch, readings, watched.wanted.util_below, at)
            since = gpu_idle.idle_since(stretch, watched.wanted.after_s)
            self._watched[task] = watched._replace(stretch=stretch)
            if self._is_news(task, since, None):
                self._post(TaskObserved(task, TaskChanges(idle_since=since)))
