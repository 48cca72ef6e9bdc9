"""I6: every byte of a rank can be read in order, or a line says that some are gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent.logs.log_file import EMPTIED, LogSource
from agent.logs.offsets import LogOffsets, Stream
from muster.daemon.clock import SystemClock
from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import (
    EndStream,
    LogReport,
    OpenStream,
    StreamId,
    StreamKind,
    TaskLogsEnd,
)
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.logs.store import LogStore
from tests.planted import Bug, put, wrap

TASK = TaskId("7.1.0")
OUT = StreamId(TASK, StreamKind.STDOUT, 0)
PATIENCE_S = 60.0
_TURNS = 200


class Delivery:
    """A real file, ledger and store with nothing but a call between them.

    What the store has taken and not synced is lost in a power cut: `lose` takes that away.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "task").mkdir()
        self.root = folder / "logs"
        self.file = folder / "task/out"
        self.file.touch()
        self.ledger = LogOffsets()
        self.acked = self.synced = 0
        self.said: list[LogReport] = []
        source = LogSource.open(folder / "task", "out")
        assert source is not None
        self.source = source
        self.boot()
        message = self.ledger.add_stream(OUT, "out")
        assert message == OpenStream(OUT)

    def boot(self) -> None:
        """A coordinator's process begins."""
        self.store = LogStore(self.root, ChangeCounters(), SystemClock())

    def connect(self) -> None:
        """A connection begins: the store says what it holds."""
        self.said = [it for it in self.ledger.reconnect() if not isinstance(it, OpenStream)]
        self.ledger.at(OUT, self.store.size(OUT))

    def ship(self, limit: int = _TURNS) -> None:
        """Send until there is nothing to be sent."""
        for _ in range(limit):
            stream = self.ledger.next_readable()
            if stream is None:
                return
            assert stream.sent is not None
            data = self.source.read(stream.sent, stream.room)
            if not data:
                self.said += self.ledger.read_to_end(stream)
                continue
            taken = self.store.append(OUT, stream.sent, memoryview(data), 1.0, self._synced)
            self.ledger.sent(stream, len(data))
            if taken is None:
                self.ledger.at(OUT, self.store.size(OUT))

    def _synced(self, _: StreamId, offset: int | None) -> None:
        assert offset is not None
        self.acked = max(self.acked, offset)
        self.ledger.acked(OUT, offset)

    def lose(self) -> None:
        """The power is cut: of the store there is what was synced, which it has said."""
        path = self.kept()
        self.store.close()
        data = path.read_bytes()[: self.synced]
        path.write_bytes(data)
        self.boot()

    async def sync(self) -> None:
        await self.store.sync()
        self.synced = self.kept().stat().st_size

    def kept(self) -> Path:
        return self.store.stream(OUT).path

    def close(self) -> None:
        self.source.close()
        self.store.close()


def _run(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(limited())


def what_is_acknowledged_outlives_a_power_cut(folder: Path) -> None:
    async def story() -> None:
        it = Delivery(folder)
        it.file.write_bytes(b"first\n")
        it.connect()
        it.ship()
        await it.sync()
        assert it.acked == 6, f"{it.acked} bytes are acknowledged"
        with it.file.open("ab") as file:
            file.write(b"second\n")
        known = it.ledger.stream(OUT)
        assert known is not None
        it.ledger.grown(known)
        it.ship()
        it.lose()
        assert it.store.size(OUT) >= it.acked, f"{it.acked} bytes were acknowledged and are lost"
        it.close()

    _run(story())


def a_connection_begins_with_what_is_stored(folder: Path) -> None:
    async def story() -> None:
        it = Delivery(folder)
        text = b"".join(b"line %d\n" % number for number in range(1000))
        it.file.write_bytes(text)
        it.connect()
        it.ship()
        it.lose()
        it.connect()
        it.ledger.complete(TASK)
        it.ship()
        await it.sync()
        assert it.kept().read_bytes() == text, "bytes that were only sent are not sent again"
        it.close()

    _run(story())


def a_task_is_complete_when_its_bytes_are_there(folder: Path) -> None:
    async def story() -> None:
        it = Delivery(folder)
        text = b"x" * 1000
        it.file.write_bytes(text)
        it.connect()
        it.ledger.complete(TASK)
        it.said += it.ledger.end_of_task(TASK)
        it.ship()
        ends = [said for said in it.said if isinstance(said, EndStream | TaskLogsEnd)]
        assert ends == [EndStream(OUT, len(text)), TaskLogsEnd(TASK, 1)], f"it said {ends}"
        await it.sync()
        assert it.kept().read_bytes() == text
        it.close()

    _run(story())


def a_log_that_was_emptied_says_so(folder: Path) -> None:
    async def story() -> None:
        it = Delivery(folder)
        it.file.write_bytes(b"before\n")
        it.connect()
        it.ship()
        it.file.write_bytes(b"new\n")
        known = it.ledger.stream(OUT)
        assert known is not None
        it.ledger.grown(known)
        it.ship()
        await it.sync()
        found = it.kept().read_bytes()
        assert found == b"before\n" + EMPTIED + b"new\n", f"a reader sees {found!r}"
        it.close()

    _run(story())


def bytes_behind_a_gap_are_not_taken(folder: Path) -> None:
    async def story() -> None:
        it = Delivery(folder)
        for offset, data in ((0, b"abc"), (5, b"fgh"), (3, b"de"), (5, b"fgh"), (4, b"efgh")):
            it.store.append(OUT, offset, memoryview(data), 1.0, lambda *_: None)
        await it.sync()
        assert it.kept().read_bytes() == b"abcdefgh"
        it.close()

    _run(story())


# --- the bugs ---------------------------------------------------------------------------------


def _acknowledges_at_once(real: Any) -> Any:
    def append(
        self: LogStore, name: StreamId, offset: int, data: memoryview, ts: float, synced: Any
    ) -> Any:
        taken = real(self, name, offset, data, ts, synced)
        if taken is not None:
            synced(name, offset + len(data))
        return taken

    return append


def _fills_gaps(real: Any) -> Any:
    def append(
        self: LogStore, name: StreamId, offset: int, data: memoryview, ts: float, synced: Any
    ) -> Any:
        return real(self, name, min(offset, self.size(name)), data, ts, synced)

    return append


def _takes_all_for_new(real: Any) -> Any:
    def append(
        self: LogStore, name: StreamId, offset: int, data: memoryview, ts: float, synced: Any
    ) -> Any:
        size = self.size(name)
        return real(self, name, max(offset, size), data, ts, synced)

    return append


def _goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore loss and repeats: continue at the count of bytes sent."""
    sent: dict[StreamId, int] = {}
    real_sent, real_at = LogOffsets.sent, LogOffsets.at

    def count(self: LogOffsets, stream: Stream, number: int) -> None:
        real_sent(self, stream, number)
        sent[stream.id] = sent.get(stream.id, 0) + number

    def at(self: LogOffsets, stream: StreamId, offset: int) -> None:
        real_at(self, stream, max(offset, sent.get(stream, 0)))

    monkeypatch.setattr(LogOffsets, "sent", count)
    monkeypatch.setattr(LogOffsets, "at", at)


def _ends_unread(self: LogOffsets, task: TaskId) -> list[LogReport]:
    known = self.task(task)
    if known is None or not known.complete or known.end_said or known.stored:
        return []
    known.end_said = True
    return [TaskLogsEnd(task, len(known.streams))]


def _begins_anew(self: LogSource, offset: int, limit: int) -> bytes:
    """Read a truncated file from its start, without a report."""
    at = offset - self._begins_at
    if at < 0 or at > self.size():
        self._begins_at, at = offset, 0
    return os.pread(self.fileno(), limit, at)


def _waits_for_old_length(self: LogSource, offset: int, limit: int) -> bytes:
    return os.pread(self.fileno(), limit, offset)


BUGS = (
    Bug(
        "bytes are acknowledged before they are on disk",
        "I6",
        wrap(LogStore, "append", _acknowledges_at_once),
        what_is_acknowledged_outlives_a_power_cut,
    ),
    Bug(
        "what was sent counts as stored",
        "I6",
        _goes_on_where_it_was,
        a_connection_begins_with_what_is_stored,
    ),
    Bug(
        "a task's logs are called complete before they are read",
        "I6",
        put(LogOffsets, "end_of_task", _ends_unread),
        a_task_is_complete_when_its_bytes_are_there,
    ),
    Bug(
        "a log that was emptied goes on without a line that says so",
        "I6",
        put(LogSource, "read", _begins_anew),
        a_log_that_was_emptied_says_so,
    ),
    Bug(
        "a log that was emptied is read where its end was",
        "I6",
        put(LogSource, "read", _waits_for_old_length),
        a_log_that_was_emptied_says_so,
    ),
    Bug(
        "bytes behind a gap are taken for those in it",
        "I6",
        wrap(LogStore, "append", _fills_gaps),
        bytes_behind_a_gap_are_not_taken,
    ),
    Bug(
        "bytes that are sent twice are stored twice",
        "I6",
        wrap(LogStore, "append", _takes_all_for_new),
        bytes_behind_a_gap_are_not_taken,
    ),
)
