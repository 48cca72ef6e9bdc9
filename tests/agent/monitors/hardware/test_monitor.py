"""The watch on the kernel's log: each line judged once, over restarts and boots of the machine."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
import pytest

from agent.core.inputs import Input, NodeObserved
from agent.monitors.hardware import seen_events
from agent.monitors.hardware.monitor import HardwareMonitor
from agent.probe.fabric.gpus import REMAP_FAILED
from muster.daemon.clock import SystemClock
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.hardware_events import Grade, HardwareEvent

GPU = GpuDevice("0000:1b:00.0", "GPU-1")
PATIENCE_S = 180.0
P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def xid(seq: int, number: int = 79, pci: str = "0000:1b:00") -> str:
    return f"4,{seq},1000,-;NVRM: Xid (PCI:{pci}): {number}, pid=1, name=python, it is over\n"


@dataclass
class Node:
    folder: Path
    log: Path
    devices: tuple[GpuDevice, ...] = (GPU,)
    heard: list[HardwareEvent] = field(default_factory=list)
    watch: HardwareMonitor | None = None
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, received: Input) -> None:
        assert isinstance(received, NodeObserved)
        self.heard += received.changes.hardware
        self._more.set()

    @asynccontextmanager
    async def agent(self, boot: str = "boot") -> AsyncIterator[None]:
        """Run an agent's monitor from start to stop."""
        self.heard.clear()
        watch = HardwareMonitor(
            self.log, self.folder, boot, SystemClock(), lambda: self.devices, self.post
        )
        watch.saw(self.devices)
        self.watch = watch
        running = asyncio.create_task(watch.run())
        await until(lambda: watch.watching)
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def look(self, fault: str = "") -> None:
        """NVML says that of the GPU."""
        assert self.watch is not None
        self.devices = (msgspec.structs.replace(GPU, fault=fault),)
        self.watch.saw(self.devices)

    def write(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.write("".join(lines))

    async def hears(self, count: int) -> list[HardwareEvent]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < count:
                self._more.clear()
                await self._more.wait()
        return self.heard


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110 - no event exists for the end of a file
            await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "kmsg").touch()
    return Node(tmp_path, tmp_path / "kmsg")


@in_a_loop
async def test_lines_before_the_first_agent_are_not_judged(node: Node) -> None:
    node.write(xid(1), xid(2, 48))
    async with node.agent():
        node.write(xid(3, 95))
        (seen,) = await node.hears(1)
    assert (seen.code, seen.number, seen.boot) == ("xid 95", 3, "boot")
    assert seen.uuid == "GPU-1"


@in_a_loop
async def test_lines_written_while_no_agent_ran_are_judged_once_by_the_next(node: Node) -> None:
    async with node.agent():
        node.write(xid(1))
        await node.hears(1)
    node.write(xid(2, 48))
    async with node.agent():
        first, second = await node.hears(2)
    assert [it.code for it in (first, second)] == ["xid 79", "xid 48"]
    async with node.agent():
        assert await node.hears(2) == [first, second]


@in_a_loop
async def test_another_boot_begins_without_the_failures_of_the_last(node: Node) -> None:
    async with node.agent():
        node.write(xid(500))
        await node.hears(1)
    node.log.write_text("")
    node.write(xid(7, 48))
    async with node.agent("another"):
        (seen,) = await node.hears(1)
    assert (seen.code, seen.boot) == ("xid 48", "another")


@in_a_loop
async def test_a_gpu_that_has_left_the_inventory_is_still_named(node: Node) -> None:
    async with node.agent():
        pass
    node.devices = ()
    async with node.agent():
        node.write(xid(1))
        (seen,) = await node.hears(1)
    assert seen.uuid == "GPU-1"


@in_a_loop
async def test_a_storm_is_reported_once_and_judged_once(node: Node) -> None:
    async with node.agent():
        node.write(*(xid(number, 31) for number in range(1, 20_000)))
        node.write(xid(20_000, 79))
        heard = list(await node.hears(2))
    assert [it.code for it in heard] == ["xid 31", "xid 79"]
    kept = seen_events.read(node.folder)
    assert kept is not None
    assert (kept.seq, len(kept.events)) == (20_000, 2)


@in_a_loop
async def test_many_kinds_are_bounded_and_a_critical_one_passes(node: Node) -> None:
    async with node.agent():
        node.write(*(xid(n, 31, f"00{n:02x}:1b:00") for n in range(1, 200)), xid(200))
        heard = list(await node.hears(31))
    assert heard[-1].code == "xid 79"
    assert len(heard) == 31


@in_a_loop
async def test_a_pipe_is_followed(tmp_path: Path) -> None:
    """A pipe is like the kernel log: it signals new data."""
    os.mkfifo(tmp_path / "kmsg")
    node = Node(tmp_path, tmp_path / "kmsg")
    writer = os.open(node.log, os.O_RDWR)
    try:
        async with node.agent():
            line = xid(1)
            os.write(writer, line[:20].encode())
            os.write(writer, line[20:].encode())
            (seen,) = await node.hears(1)
    finally:
        os.close(writer)
    assert seen.code == "xid 79"


@in_a_loop
async def test_a_log_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, tmp_path / "none")
    watch = HardwareMonitor(node.log, tmp_path, "boot", SystemClock(), lambda: (), node.post)
    running = asyncio.create_task(watch.run())
    done, _ = await asyncio.wait([running], timeout=0.2)
    assert not done
    running.cancel()


@in_a_loop
async def test_a_ledger_that_is_spoilt_is_begun_anew(node: Node) -> None:
    (node.folder / seen_events.NAME).write_bytes(b'{"boot":"\xff"}')
    node.write(xid(1))
    async with node.agent():
        node.write(xid(2, 48))
        (seen,) = await node.hears(1)
    assert seen.code == "xid 48"


ECC = "counts 2 uncorrectable ECC errors since its last reset: reset it"


@in_a_loop
async def test_an_nvml_counter_is_reported_once_until_it_is_repaired(node: Node) -> None:
    async with node.agent():
        node.look(ECC)
        (seen,) = await node.hears(1)
        node.look(ECC.replace("2", "3"))
        node.look("is divided by MIG, and Muster assigns whole GPUs")
        node.look(REMAP_FAILED)
        await node.hears(2)
    assert (seen.code, seen.grade, seen.uuid) == ("nvml ecc", Grade.CRITICAL, "GPU-1")
    assert seen.text == f"GPU 0000:1b:00.0 {ECC}"
    assert [it.code for it in node.heard] == ["nvml ecc", "nvml remap"]
    # After a resume, the next agent does not drain the node for the same event again.
    async with node.agent():
        await node.hears(2)
        node.look()
        node.write(xid(1, 31))
        await node.hears(3)
        node.look(REMAP_FAILED)
        *before, again = await node.hears(4)
    assert again.code == "nvml remap"
    assert again.number > max(it.number for it in before)
    node.log.write_text("")
    async with node.agent("another boot"):
        (event,) = await node.hears(1)
    assert event.code == "nvml remap"


@in_a_loop
async def test_nvml_counters_hide_no_kernel_line(node: Node) -> None:
    async with node.agent():
        node.write(xid(1, 31))
        await node.hears(1)
        node.look(ECC)
        await node.hears(2)
        node.write(xid(2))
        heard = list(await node.hears(3))
    assert [it.code for it in heard] == ["xid 31", "nvml ecc", "xid 79"]
    numbers = [it.number for it in heard]
    assert numbers == sorted(set(numbers)), "each is news"


@in_a_loop
async def test_gpus_are_watched_where_the_kernels_log_may_not_be_read(tmp_path: Path) -> None:
    node = Node(tmp_path, tmp_path / "none")
    watch = HardwareMonitor(node.log, tmp_path, "boot", SystemClock(), lambda: (), node.post)
    running = asyncio.create_task(watch.run())
    watch.saw((msgspec.structs.replace(GPU, fault=ECC),))
    (seen,) = await node.hears(1)
    assert seen.code == "nvml ecc"
    running.cancel()


@in_a_loop
async def test_without_the_kernels_log_what_is_new_is_so_where_the_ledger_was_lost(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, tmp_path / "none")
    for lives in (1, 2):
        watch = HardwareMonitor(node.log, tmp_path, "boot", SystemClock(), lambda: (), node.post)
        running = asyncio.create_task(watch.run())
        watch.saw((msgspec.structs.replace(GPU, fault=ECC),))
        await node.hears(lives)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        (tmp_path / seen_events.NAME).unlink()
    first, second = (seen.number for seen in node.heard)
    assert second > first
