"""Sampler of one task's traffic from start to end.

Its state is a file in the task's directory, from which a restarted agent continues. The counters
keep running meanwhile, so no byte is lost or counted twice. The report mentions the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.monitors.monitor import Monitor
from agent.monitors.traffic.counters import CounterReader
from agent.monitors.traffic.nccl_log import FileState, NcclLines
from muster.daemon.clock import Clock
from muster.fabric.counters import Totals
from muster.fabric.traffic_verdict import summary
from muster.protocol.ids import TaskId
from muster.protocol.observations.traffic import FabricReport, NcclEvidence

STATE: Final = "traffic.json"
PERIOD_S: Final = 2.0
LONGEST_S: Final = 6.0
"""After a longer pause between samples, the rate is not used as a peak."""
SAY_S: Final = 15.0
"""Interval of reports with new figures only. A change of the verdict is reported at once."""
LAST_LOOK_S: Final = 2.0
"""A driver that hangs delays the end of a task by at most this."""
# Lines that remain unread, for lack of descriptors or because of their number, are lost with the
# task.
_LAST_LOOKS: Final = 10
_LAST_PAUSE_S: Final = 0.1
_STATE_BYTES_MAX: Final = 4 << 20
"""More than the bounds on files and entries of NCCL's log allow."""

_log = structlog.get_logger("agent.proof")


class WatchedTraffic(msgspec.Struct, omit_defaults=True):
    """Known traffic of a task, and how it is observed."""

    netdevs: tuple[str, ...] = ()
    unheard: str = ""
    shared: bool = False
    totals: Totals = msgspec.field(default_factory=Totals)
    files: dict[str, FileState] = msgspec.field(default_factory=dict)
    said: NcclEvidence = NcclEvidence()


class Sampler(Monitor):
    """Sampler of one task. `run` samples until cancelled; `finish` takes a last sample and ends."""

    def __init__(
        self,
        task: TaskId,
        folder: Path,
        reader: CounterReader,
        watched: WatchedTraffic,
        clock: Clock,
        post: Callable[[Input], None],
        lines_came: Callable[[], None],
    ) -> None:
        super().__init__(post, PERIOD_S)
        self._task = task
        self._folder = folder
        self._reader = reader
        self._watched = watched
        self._clock = clock
        self._lines_came = lines_came
        self._lines = NcclLines(folder, watched.files)
        self._looking = asyncio.Lock()
        self._said: FabricReport | None = None
        self._said_at = 0.0
        self._over = False

    def share(self) -> None:
        """Another task runs on the node."""
        self._watched.shared = True

    async def finish(self, *, counters: bool = True) -> None:
        """The task has ended. Post the last figures before returning. Without `counters` the
        earlier figures remain, because the current ones may include another task.
        """
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                await self.look(last=True, counters=counters)
        except TimeoutError:
            # Read the lines first, before a counter may hang.
            if self._lines.any:
                self._lines_came()
            _log.warning("traffic_not_read", task=self._task, waited_s=LAST_LOOK_S)

    async def look(self, *, last: bool = False, counters: bool = True) -> None:
        """Take a sample, and post it if it is new."""
        async with self._looking:
            if self._over:
                return
            self._over = last
            await asyncio.to_thread(self._sample, counters=counters)
            for _ in range(_LAST_LOOKS if last else 0):
                if not (self._lines.blind or self._lines.behind):
                    break
                await asyncio.sleep(_LAST_PAUSE_S if self._lines.blind else 0)
                await asyncio.to_thread(self._sample, counters=False)
            if self._lines.any:
                self._lines_came()
            report = self.report()
            now = self._clock.now().mono
            if last or self._is_due(report, now):
                self._said, self._said_at = report, now
                self._post(TaskObserved(self._task, TaskChanges(traffic=report)))
            if last:
                self._lines.close()

    def _sample(self, *, counters: bool) -> None:
        watched = self._watched
        # Lines first: a driver that hangs does so where its counters are read.
        if not watched.unheard:
            watched.said = self._lines.look()
        if counters:
            reading = self._reader.reading(watched.netdevs, self._clock.now().mono)
            watched.totals.add(reading, LONGEST_S)
        self._keep()

    def report(self) -> FabricReport:
        """Return the report of all that is known."""
        watched = self._watched
        totals = watched.totals
        return FabricReport(
            seconds=round(totals.seconds, 3),
            samples=totals.samples,
            gaps=totals.gaps,
            gap_s=round(totals.gap_s, 3),
            ports=totals.port_figures(),
            sockets=totals.socket_figures(),
            peak=totals.peak,
            nccl=watched.said,
            shared=watched.shared,
            unheard=watched.unheard,
        )

    def _is_due(self, report: FabricReport, now: float) -> bool:
        if self._said is None or now - self._said_at >= SAY_S:
            return True
        return summary(report) != summary(self._said)

    def _keep(self) -> None:
        """Save the state. Not synced, because a machine crash ends the task, too."""
        self._watched.files = self._lines.state()
        path = self._folder / STATE
        temporary = path.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(self._watched))
            os.replace(temporary, path)


def kept(folder: Path) -> WatchedTraffic | None:
    """Return the saved state of a task. None if an earlier agent process saved none that can be
    read.
    """
    try:
        with open(folder / STATE, "rb") as file:
            return msgspec.json.decode(file.read(_STATE_BYTES_MAX), type=WatchedTraffic)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
