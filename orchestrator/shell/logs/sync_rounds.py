"""Rounds of fsync: the streams that were written to are put on disk together.

Each stream succeeds or fails by itself. The kernel reports a write that failed to one fsync, and
may drop the bytes: the next fsync then succeeds without them. So the bytes of a stream that could
not be synced are never acknowledged later. The stream returns to what was on disk, and the node
sends the rest again.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from muster.protocol.link.log_channel import StreamId
from orchestrator.shell.logs.layout import sync_files
from orchestrator.shell.logs.stream_file import StreamFile, StreamMark
from orchestrator.shell.logs.writer import Writer

SYNC_EVERY_S: Final = 0.2
# Because an agent has a bounded part of a stream in flight, sync sooner for heavy writers.
_SYNC_BYTES: Final = 1 << 20

# Called on the loop with the number of bytes on disk, or by the writer with None if the bytes are
# wanted again.
Synced = Callable[[StreamId, int | None], None]


class _Written(NamedTuple):
    """A stream with bytes that are not on disk yet, and the receiver of its acknowledgement."""

    name: StreamId
    synced: Synced


class _Round(NamedTuple):
    """Streams that are synced together, each with its state, and new folders."""

    marks: dict[StreamFile, StreamMark]
    unreadable: dict[Path, str]  # why, by path
    folders: set[Path]


class SyncRounds:
    """Syncs in a thread, at most 200 ms after the bytes arrived, or sooner if there are many.

    `done` is called for a stream that is on disk, `failed` for one that is not, with the reason.
    Both are called by the writer, which also calls `touched`, `grew` and `drop`.
    """

    def __init__(
        self,
        writer: Writer,
        done: Callable[[StreamFile, StreamId, StreamMark], None],
        failed: Callable[[StreamFile, StreamId, str], None],
    ) -> None:
        self._writer = writer
        self._done = done
        self._failed = failed
        self._written: dict[StreamFile, _Written] = {}
        self._in_flight: dict[StreamFile, _Written] = {}
        self._new_folders: set[Path] = set()
        self._unsynced = 0  # bytes
        self._is_due = False  # the loop knows that there is work
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._one_at_a_time = asyncio.Lock()
        self._began: float | None = None  # monotonic seconds
        # Acknowledgements of log bytes wait for it, and for no thread that others use.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-sync")

    @property
    def unanswered_s(self) -> float:
        """Return for how long the disk has been syncing, or 0 if it is not."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def touched(self, stream: StreamFile, name: StreamId, synced: Synced) -> None:
        """Include a stream in the next round."""
        self._written[stream] = _Written(name, synced)
        if not stream.was_synced:
            task = stream.path.parent
            self._new_folders.update((task, *list(task.parents)[:3]))
        if not self._is_due:
            self._is_due = True
            self._writer.post(self._work.set)

    def grew(self, count: int) -> None:
        """Count bytes that were written. Many of them are synced at once."""
        before = self._unsynced
        self._unsynced += count
        if before < _SYNC_BYTES <= self._unsynced:
            self._writer.post(self._hurry.set)

    def is_pending(self, stream: StreamFile) -> bool:
        """True if the stream has bytes that may not be on disk."""
        return stream in self._written or stream in self._in_flight

    def drop(self, stream: StreamFile) -> None:
        """Forget a stream whose files are removed."""
        self._written.pop(stream, None)
        self._in_flight.pop(stream, None)

    async def run(self) -> None:
        """Sync periodically, until cancelled."""
        while True:
            await self._work.wait()
            try:
                async with asyncio.timeout(SYNC_EVERY_S):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            await self.sync()

    async def wait(self) -> None:
        """Wait for the end of a round that starts after this call."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._work.set()
        self._hurry.set()
        await future

    async def sync(self) -> None:
        """Sync everything that was written so far, as far as the disk can."""
        async with self._one_at_a_time:
            self._work.clear()
            self._hurry.clear()
            waiting, self._waiting = self._waiting, []
            try:
                marks, unreadable, folders = await self._writer.call(self._begin)
                paths = [stream.path for stream in marks]
                loop = asyncio.get_running_loop()
                self._began = time.monotonic()
                try:
                    failures = await loop.run_in_executor(self._thread, sync_files, paths, folders)
                finally:
                    self._began = None
                await self._writer.call(partial(self._finish, marks, failures | unreadable))
            except asyncio.CancelledError:
                self._writer.submit(self._return)
                self._waiting += waiting
                raise
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _begin(self) -> _Round:
        """Begin a round."""
        self._is_due = False
        self._unsynced = 0
        self._in_flight = self._written
        self._written = {}
        folders, self._new_folders = self._new_folders, set()
        marks: dict[StreamFile, StreamMark] = {}
        unreadable: dict[Path, str] = {}
        for stream in list(self._in_flight):
            try:
                marks[stream] = stream.mark()
            except OSError as error:
                unreadable[stream.path] = f"it cannot be read: {error.strerror}"
        return _Round(marks, unreadable, folders)

    def _return(self) -> None:
        """Leave the streams of a cancelled round to the next one."""
        self._written = self._in_flight | self._written
        self._in_flight = {}

    def _finish(self, marks: dict[StreamFile, StreamMark], failures: dict[Path, str]) -> None:
        for stream in list(self._in_flight):
            pending = self._in_flight.pop(stream, None)
            if pending is None:
                continue  # its files were removed
            why = _why(stream.path, failures) if failures else None
            if why is None:
                self._done(stream, pending.name, marks[stream])
                self._writer.post(pending.synced, pending.name, marks[stream].size)
                continue
            # Bytes that arrived during the round follow the missing ones.
            self._written.pop(stream, None)
            self._failed(stream, pending.name, why)
            pending.synced(pending.name, None)


def _why(path: Path, failures: dict[Path, str]) -> str | None:
    """Return why a stream is not on disk: because of its own file, or a folder above it."""
    return next((failures[name] for name in (path, *path.parents) if name in failures), None)
