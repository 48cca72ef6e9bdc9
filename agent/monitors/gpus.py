"""Monitor of this node's GPUs: checked before a task gets some, and periodically."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Never

import structlog
from msgspec.structs import replace

from agent.config import AgentConfig
from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.probe import host
from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.gpus import (
    INSTALL_NVML,
    NO_NVML,
    MemoryUse,
    hold_nvml,
    lacks_nvml,
    memory_of,
)
from agent.probe.fabric.pci import functions
from muster.daemon.errors import DaemonError
from muster.protocol.link.control_channel import NodeChanges, PrepareTask
from muster.protocol.observations.gpus import IN_USE, GpuDevice, usable
from muster.protocol.text import listed

LOOK_EVERY_S: Final = 60.0
# The interval while a job may be waiting for GPUs that a foreign process uses.
LOOK_BUSY_S: Final = 5.0
# The driver needs time to free an earlier job's memory; otherwise the next job would fail.
CLEAN_BYTES: Final = 512 << 20
POLL_S: Final = 2.0
GIVE_UP_S: Final = 50.0
_SHOWN_MAX: Final = 4

_log = structlog.get_logger("agent.monitors.gpus")


class GpuGoneError(DaemonError):
    """A GPU that the task should get is missing, or is not given to jobs any more."""


class GpuDirtyError(DaemonError):
    """Memory of a GPU that the task should get stays in use, though no task has the GPU."""


class GpuMonitor(Monitor):
    """Posts changes of the GPUs, and refuses GPUs that are missing or in use."""

    def __init__(
        self,
        config: AgentConfig,
        post: Callable[[Input], None],
        changed: Callable[[tuple[GpuDevice, ...]], None] = lambda _: None,
        *,
        poll_s: float = POLL_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        super().__init__(post, LOOK_EVERY_S, at_once=False)
        self._config = config
        self._changed = changed
        self._poll_s = poll_s
        self._give_up_s = give_up_s
        self._seen: tuple[GpuDevice, ...] | None = None
        self._dirty: set[str] = set()  # excluded until their memory is free
        self._nvml = True  # until known otherwise

    async def check(self, prepare: PrepareTask) -> None:
        """Check the GPUs of a task; posts changes first. Raises GpuGoneError for a GPU that is
        unavailable, and GpuDirtyError for one whose memory does not become free in time."""
        if prepare.gpus:
            await self._check_there(prepare.gpus)
        if self._nvml and (prepare.gpus or self._config.gpus != 0):
            await self._await_clean(prepare.gpus)

    async def _check_there(self, wanted: tuple[str, ...]) -> None:
        there = {gpu.uuid: gpu for gpu in await self.look() if gpu.uuid}
        wrong = []
        for uuid in wanted:
            if uuid not in there:
                wrong.append(f"GPU {uuid} no longer exists")
            elif there[uuid].fault:
                wrong.append(f"GPU {uuid} ({there[uuid].pci}) {there[uuid].fault}")
            elif there[uuid].busy:
                wrong.append(f"GPU {uuid} ({there[uuid].pci}) {IN_USE}")
        if wrong:
            raise GpuGoneError(listed(wrong))

    async def _await_clean(self, wanted: tuple[str, ...]) -> None:
        """`wanted`: () means all GPUs that the node gives to jobs."""
        began = time.monotonic()
        while dirty := await self._dirty_of(wanted):
            if time.monotonic() - began >= self._give_up_s:
                self._dirty |= dirty.keys()
                self.stir()
                texts = [f"GPU {uuid} {_in_use(use)}" for uuid, use in sorted(dirty.items())]
                after = f"after {self._give_up_s:g} s: see nvidia-smi there, and reset or reboot it"
                raise GpuDirtyError(f"{listed(texts)}, still {after}")
            await asyncio.sleep(self._poll_s)

    async def _dirty_of(self, wanted: tuple[str, ...]) -> dict[str, MemoryUse]:
        memory = await asyncio.to_thread(memory_of, FsRoot(self._config.fabric.root))
        dirty = {uuid: use for uuid, use in memory.items() if use.used_bytes >= CLEAN_BYTES}
        if not dirty or wanted:
            return {uuid: dirty[uuid] for uuid in wanted if uuid in dirty}
        seen = await self.look() if self._seen is None else self._seen
        return {gpu.uuid: dirty[gpu.uuid] for gpu in usable(seen) if gpu.uuid in dirty}

    async def run(self) -> Never:
        # Without persistence mode NVML takes a second to initialize: do it now, not during a
        # launch.
        self._nvml = await asyncio.to_thread(hold_nvml)
        tree = FsRoot(self._config.fabric.root)
        if not self._nvml and await asyncio.to_thread(lambda: lacks_nvml(tree, functions(tree))):
            _log.warning("gpus_not_watched", why=f"{NO_NVML}: {INSTALL_NVML}")
        await super().run()

    async def look(self) -> tuple[GpuDevice, ...]:
        found = await asyncio.to_thread(self._devices)
        if found != self._seen:
            self._seen = found
            self._period_s = LOOK_BUSY_S if any(gpu.busy for gpu in found) else LOOK_EVERY_S
            self._changed(found)
            for gpu in found:
                if why := gpu.fault or gpu.busy:
                    _log.warning("gpu_not_given", gpu=gpu.pci, uuid=gpu.uuid, why=why)
        if found or self._config.gpus == "auto":
            self._post(NodeObserved(NodeChanges(devices=found)))
        return found

    def _devices(self) -> tuple[GpuDevice, ...]:
        """The node's GPUs; runs in a thread. GPUs whose memory stayed in use count as busy until it
        is free."""
        found = host.devices(self._config)
        if not self._dirty:
            return found
        memory = memory_of(FsRoot(self._config.fabric.root))
        held = {
            uuid: memory[uuid]
            for uuid in self._dirty
            if uuid in memory and memory[uuid].used_bytes >= CLEAN_BYTES
        }
        self._dirty &= held.keys()
        return tuple(
            replace(gpu, busy=_in_use(held[gpu.uuid])) if gpu.uuid in held and not gpu.busy else gpu
            for gpu in found
        )


def _in_use(use: MemoryUse) -> str:
    pids = ", ".join(str(pid) for pid in use.pids[:_SHOWN_MAX])
    who = f"processes {pids} use it" if pids else "no process that uses it is visible"
    # Rounded, because an exact number would change with each check.
    return f"has {use.used_bytes >> 30 or 0.5:g} GiB of its memory or more in use, and {who}"
