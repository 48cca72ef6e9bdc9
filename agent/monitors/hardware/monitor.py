"""Hardware monitor: follows the kernel's log and NVML's counters, and posts their events."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import msgspec
import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.hardware import seen_events as ledgers
from agent.monitors.hardware.kernel_lines import KernelEvent, Reader, record
from agent.monitors.hardware.seen_events import SeenEvents
from agent.monitors.monitor import Monitor
from agent.probe.fabric.gpus import counted
from muster.daemon.clock import Clock
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.hardware_events import COUNTED, Grade, HardwareEvent

_RECORD_BYTES: Final = 16 * 1024
"""Buffer size: a read smaller than its record fails. The longest record has 8 KiB."""
_AT_ONCE: Final = 256
"""Records read in one go, before other tasks of the loop run."""
_POLL_S: Final = 0.5
_COUNT_S: Final = 60.0
_WRITE_S: Final = 0.5
"""Seconds to wait until an event is on disk before it is reported, so that a hanging disk delays no
report.
"""
_LAZY_S: Final = 5.0
_AGAIN_S: Final = {Grade.CRITICAL: 5.0, Grade.NOTE: 60.0, Grade.SHOWN: 60.0}
"""Seconds before the same event is reported again."""
_OTHERS_MAX: Final = 30
"""Limit of non-critical events per minute."""

_log = structlog.get_logger("agent.hardware")


class HardwareMonitor(Monitor):
    """Reads records from `path`; tests use another file than the kernel's log."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        boot: str,
        clock: Clock,
        devices: Callable[[], tuple[GpuDevice, ...]],
        post: Callable[[Input], None],
    ) -> None:
        """`folder` stores the reported events. `devices` returns the node's known GPUs."""
        super().__init__(post, _COUNT_S)
        self._path = path
        self._folder = folder
        self._boot = boot
        self._clock = clock
        self._devices = devices
        self._critical: Callable[[], object] = lambda: None
        self._fd: int | None = None
        self._ledger = SeenEvents(boot)
        self._reader = Reader()
        self._rest = b""
        # Without the kernel's log, a lost store would restart the numbers, and the coordinator
        # would take smaller numbers for known events.
        self._least = 0
        self._reported_at: dict[tuple[str, str, int], float] = {}
        self._others: list[float] = []
        self._writing: asyncio.Task[None] | None = None
        self._written_at = 0.0
        self._unwritten = False
        self._gpus: tuple[GpuDevice, ...] = ()
        self._external: list[tuple[str, str]] = []
        self.watching = False

    def saw(self, devices: tuple[GpuDevice, ...]) -> None:
        """Record the result of a GPU check."""
        self._gpus = devices
        self.stir()

    def tell(self, code: str, text: str) -> None:
        """Report a critical event that somebody else has found."""
        self._external.append((code, text))
        self.stir()

    async def run(self, critical: Callable[[], object] = lambda: None) -> Never:
        """Follow the log and the counters. `critical` is called after each critical event."""
        self._critical = critical
        known = await asyncio.to_thread(ledgers.read, self._folder)
        # Lines from before this node's first agent concern no job of ours.
        judged_before = known is None
        self._ledger = (known or SeenEvents(self._boot)).in_boot(self._boot)
        self._learn_gpus()
        if self._ledger.events:
            # The coordinator ignores those that it has already received.
            self._post(NodeObserved(NodeChanges(hardware=self._ledger.events)))
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            _log.warning(
                "hardware_not_watched",
                path=str(self._path),
                why=f"{error.strerror}: GPU failures and out-of-memory kills are not detected; "
                "let the agent read the kernel's log (CAP_SYSLOG)",
            )
            self._least = int(self._clock.now().mono * 1e6)
            await super().run()
        try:
            if judged_before:
                # The kernel keeps about a megabyte.
                while self._read(fd, judge=False):
                    pass
            await self._write()
            self.watching = True
            await self._follow(fd)
        except OSError as error:
            _log.warning("hardware_not_watched", path=str(self._path), why=str(error))
        finally:
            os.close(fd)
        await super().run()

    async def _follow(self, fd: int) -> Never:
        """Follow the kernel's log besides the GPUs. Raises OSError if it cannot be read."""
        loop = asyncio.get_running_loop()
        self._fd = fd
        try:
            loop.add_reader(fd, self.stir)
        except OSError:
            # A plain file, as in tests.
            self._period_s = _POLL_S
        try:
            await super().run()
        finally:
            loop.remove_reader(fd)
            self._fd, self._period_s = None, _COUNT_S

    async def look(self) -> None:
        now = self._clock.now().mono
        if self._learn_gpus() or (self._unwritten and now - self._written_at > _LAZY_S):
            await self._write()
        more = True
        while more:
            before = self._ledger.last
            more = self._fd is not None and self._read(self._fd, judge=True)
            self._count()
            self._take_external()
            fresh = [it for it in self._ledger.events if it.number > before]
            if fresh:
                self._learn_gpus()
                await self._write()
            for event in fresh:
                log = _log.error if event.grade is Grade.CRITICAL else _log.warning
                log("hardware", text=event.text, code=event.code, uuid=event.uuid)
                self._post(NodeObserved(NodeChanges(hardware=(event,))))
                if event.grade is Grade.CRITICAL:
                    self._critical()
            await asyncio.sleep(0)

    def _read(self, fd: int, *, judge: bool) -> bool:
        """Read up to a limit. Returns whether there may be more."""
        for _ in range(_AT_ONCE):
            try:
                raw = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The kernel has overwritten unread records, and continues with the oldest one.
                    _log.warning("kernel_log_overrun")
                    continue
                raise
            if not raw:
                return False
            for line in self._lines(raw):
                self._take(line, judge=judge)
        return True

    def _lines(self, raw: bytes) -> list[bytes]:
        """Split a read: the kernel returns one record, a file or a pipe any number of bytes."""
        whole, _, self._rest = (self._rest + raw).rpartition(b"\n")
        self._rest = self._rest[-_RECORD_BYTES:]
        return [line for line in whole.split(b"\n") if not line.startswith(b" ")]

    def _take(self, line: bytes, *, judge: bool) -> None:
        found = record(line)
        if found is None or found.seq <= self._ledger.seq:
            return
        self._ledger = msgspec.structs.replace(self._ledger, seq=found.seq)
        seen = self._reader.read(found.text)
        if seen is not None and judge:
            # Also for an event that is not reported again: no later agent process may judge it
            # again.
            self._unwritten = True
            if self._is_reportable(seen):
                self._ledger = self._ledger.with_event(self._event(seen))

    def _is_reportable(self, seen: KernelEvent) -> bool:
        now = self._clock.now().mono
        key = (seen.code, seen.pci, seen.pid)
        last = self._reported_at.get(key)
        if last is not None and now - last < _AGAIN_S[seen.grade]:
            return False
        if seen.grade is not Grade.CRITICAL:
            self._others = [at for at in self._others if now - at < 60.0]
            if len(self._others) >= _OTHERS_MAX:
                return False
            self._others.append(now)
        if len(self._reported_at) > 4 * _OTHERS_MAX:
            self._reported_at = {it: at for it, at in self._reported_at.items() if now - at < 60.0}
        self._reported_at[key] = now
        return True

    def _event(self, seen: KernelEvent) -> HardwareEvent:
        task = None
        with contextlib.suppress(BadId):
            if seen.task:
                parse_task_id(TaskId(seen.task))
                task = TaskId(seen.task)
        return HardwareEvent(
            self._ledger.boot,
            max(self._ledger.seq, self._ledger.last + 1, self._least),
            seen.code,
            seen.grade,
            seen.text,
            seen.pci,
            self._uuid(seen.pci),
            task,
            seen.pid,
        )

    def _count(self) -> None:
        """Report new error counts of NVML: once per boot for as long as they last, so that a
        resumed node stays resumed when the agent restarts.
        """
        there = {gpu.uuid for gpu in self._gpus if gpu.uuid}
        found = {
            (gpu.uuid, kind): gpu for gpu in self._gpus if gpu.uuid and (kind := counted(gpu.fault))
        }
        known = set(self._ledger.ailing)
        for (uuid, kind), gpu in found.items():
            if (uuid, kind) not in known:
                text = f"GPU {gpu.pci} {gpu.fault}"
                seen = KernelEvent(f"{COUNTED}{kind}", Grade.CRITICAL, text, gpu.pci)
                event = msgspec.structs.replace(self._event(seen), uuid=uuid)
                self._ledger = self._ledger.with_event(event)
        ailing = {one for one in known if one[0] not in there} | set(found)
        if ailing != known:
            self._unwritten = True
            self._ledger = msgspec.structs.replace(self._ledger, ailing=tuple(sorted(ailing)))

    def _take_external(self) -> None:
        events, self._external = self._external, []
        for code, text in events:
            event = self._event(KernelEvent(code, Grade.CRITICAL, text))
            self._ledger = self._ledger.with_event(event)

    def _uuid(self, pci: str) -> str:
        now = {gpu.pci: gpu.uuid for gpu in self._devices() if gpu.uuid}
        return now.get(pci) or self._ledger.gpus.get(pci, "")

    def _learn_gpus(self) -> bool:
        """Learn the current GPUs. Returns whether anything was new."""
        gpus = self._ledger.gpus | {it.pci: it.uuid for it in self._devices() if it.uuid}
        if gpus == self._ledger.gpus:
            return False
        self._ledger = msgspec.structs.replace(self._ledger, gpus=gpus)
        return True

    async def _write(self) -> None:
        if self._writing is not None and not self._writing.done():
            # The disk hangs or is slow. The next write includes this content.
            self._unwritten = True
            return
        self._written_at, self._unwritten = self._clock.now().mono, False
        writing = asyncio.to_thread(ledgers.write, self._folder, self._ledger)
        self._writing = asyncio.get_running_loop().create_task(writing, name="agent.hardware")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_S):
                await asyncio.shield(self._writing)
