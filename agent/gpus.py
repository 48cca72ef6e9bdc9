"""The GPUs of this node: looked at when a task is to have some, and now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Never

import structlog

from agent.config import AgentConfig
from agent.core.stimuli import GpusSeen, Stimulus
from agent.probe import host
from agent.probe.fabric.gpus import hold_nvml
from muster.daemon.errors import DaemonError
from muster.protocol.gpus import GpuDevice
from muster.protocol.messages import PrepareTask

LOOK_EVERY_S: Final = 60.0
# While a job may be waiting for what a stranger uses.
LOOK_BUSY_S: Final = 5.0
_SHOWN_MAX: Final = 4

_log = structlog.get_logger("agent.gpus")


class GpuGoneError(DaemonError):
    """A GPU that a task is to have is not there, or is not given to jobs any more."""


class Gpus:
    """Tells what has changed of them, and refuses what is not there."""

    def __init__(self, config: AgentConfig, post: Callable[[Stimulus], None]) -> None:
        self._config = config
        self._post = post
        self._seen: tuple[GpuDevice, ...] | None = None
        self._again = asyncio.Event()

    async def check(self, prepare: PrepareTask) -> None:
        """Raises GpuGoneError for a GPU of this task that cannot be had; what is seen is told
        before."""
        if not prepare.gpus:
            return
        there = {gpu.uuid: gpu for gpu in await self._look() if gpu.uuid}
        wrong = []
        for uuid in prepare.gpus:
            if uuid not in there:
                wrong.append(f"there is no GPU {uuid} any more")
            elif there[uuid].fault:
                wrong.append(f"GPU {uuid} ({there[uuid].pci}) {there[uuid].fault}")
            elif there[uuid].busy:
                wrong.append(f"GPU {uuid} ({there[uuid].pci}) {there[uuid].busy}")
        if wrong:
            more = f"; and {len(wrong) - _SHOWN_MAX} more" if len(wrong) > _SHOWN_MAX else ""
            raise GpuGoneError("; ".join(wrong[:_SHOWN_MAX]) + more)

    async def watch(self) -> Never:
        """Post what changes while no task asks, until cancelled."""
        # Without persistence mode NVML takes a second to begin: not at a launch.
        await asyncio.to_thread(hold_nvml)
        while True:
            busy = any(gpu.busy for gpu in self._seen or ())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_BUSY_S if busy else LOOK_EVERY_S):
                    await self._again.wait()
            self._again.clear()
            await self._look()

    def look_again(self) -> None:
        """At once: something has happened to one of them."""
        self._again.set()

    async def _look(self) -> tuple[GpuDevice, ...]:
        found = await asyncio.to_thread(host.devices, self._config)
        if found != self._seen:
            self._seen = found
            for gpu in found:
                if why := gpu.fault or gpu.busy:
                    _log.warning("gpu_not_given", gpu=gpu.pci, uuid=gpu.uuid, why=why)
        if found or self._config.gpus == "auto":
            self._post(GpusSeen(found))
        return found
