"""Bookkeeping of log streams: bytes sent, stored and to be sent next. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import (
    CHUNK_BYTES_MAX,
    EndStream,
    LogReport,
    OpenStream,
    StreamId,
    TaskLogsEnd,
)

# Unacknowledged bytes per stream: at 20 ms until they are on the coordinator's disk, that is 200
# MB/s. Only the socket buffers them in memory.
WINDOW_BYTES: Final = 4 * 1024 * 1024
# Smaller than the coordinator's limit: the allocator maps memory for each larger chunk, which
# halves the throughput of a core, and larger chunks delay other messages.
CHUNK_BYTES: Final = CHUNK_BYTES_MAX // 2


@dataclass(slots=True)
class Stream:
    """A file. `sent` and `stored` are offsets; `sent` is None until the coordinator has named
    one.
    """

    id: StreamId
    path: str
    sent: int | None = None
    stored: int = 0
    ended: bool = False  # EndStream was sent on this connection
    waiting: bool = False  # in the queue of streams to be read

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        if self.sent is None or self.ended:
            return 0
        return min(CHUNK_BYTES, self.stored + WINDOW_BYTES - self.sent)


@dataclass(slots=True)
class TaskStreams:
    """The streams of one task, and the progress of their end."""

    id: TaskId
    streams: dict[StreamId, Stream] = field(default_factory=dict)
    refused: set[StreamId] = field(default_factory=set)  # by the coordinator, for good
    complete: bool = False  # no process of the task is left
    silent: bool = False  # and its own report says that it has written nothing
    end_said: bool = False
    stored: bool = False


class LogOffsets:
    """Bookkeeping of the shipper. After a reconnect, every message is sent again."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, TaskStreams] = {}
        self._readable: deque[Stream] = deque()

    @property
    def unfinished(self) -> bool:
        """True if a task has logs that are not all stored."""
        return any(not task.stored for task in self._tasks.values())

    def task(self, task: TaskId) -> TaskStreams | None:
        return self._tasks.get(task)

    def stream(self, stream: StreamId) -> Stream | None:
        task = self._tasks.get(stream.task)
        return None if task is None else task.streams.get(stream)

    def add_task(self, task: TaskId) -> TaskStreams:
        return self._tasks.setdefault(task, TaskStreams(task))

    def add_stream(self, stream: StreamId, path: str) -> OpenStream | None:
        """Add a stream. Returns the message to send, or None if it was known."""
        task = self.add_task(stream.task)
        if stream in task.streams or stream in task.refused or task.end_said:
            return None
        task.streams[stream] = Stream(stream, path)
        return OpenStream(stream)

    def drop(self, task: TaskId) -> None:
        """Drop a task that is removed."""
        gone = self._tasks.pop(task, None)
        if gone is not None:
            for stream in gone.streams.values():
                stream.ended = True

    def reconnect(self) -> list[LogReport]:
        """Begin a new connection. Returns the first messages."""
        self._readable.clear()
        said: list[LogReport] = []
        for task in self._tasks.values():
            if task.stored:
                continue
            task.end_said = False
            for stream in task.streams.values():
                stream.sent, stream.ended, stream.waiting = None, False, False
                said.append(OpenStream(stream.id))
            said += self.end_of_task(task.id)
        return said

    def at(self, stream: StreamId, offset: int) -> None:
        """The coordinator holds `offset` bytes and wants those after them, perhaps again."""
        known = self.stream(stream)
        task = self._tasks.get(stream.task)
        if known is None or task is None or task.stored:
            return
        known.sent = known.stored = offset
        known.ended = task.end_said = False
        self._queue(known)

    def refuse(self, stream: StreamId) -> list[LogReport]:
        """The coordinator refuses the stream for good: the task's log ends without it. Returns the
        messages to send.
        """
        known = self.stream(stream)
        task = self._tasks.get(stream.task)
        if known is None or task is None or task.stored:
            return []
        task.end_said = False
        del task.streams[stream]
        task.refused.add(stream)
        known.ended = True
        return self.end_of_task(task.id)

    def grown(self, stream: Stream) -> None:
        """Mark that the file may have more bytes than were sent."""
        self._queue(stream)

    def acked(self, stream: StreamId, offset: int) -> None:
        known = self.stream(stream)
        if known is None or known.sent is None:
            return
        full = known.room <= 0  # a hole may be far longer than the window
        known.stored = max(known.stored, min(offset, known.sent))
        if full:
            self._queue(known)

    def next_readable(self) -> Stream | None:
        """Return the next stream in turn that has room. Each gets one chunk per turn."""
        while self._readable:
            stream = self._readable.popleft()
            stream.waiting = False
            if stream.room > 0:
                return stream
        return None

    def sent(self, stream: Stream, count: int) -> None:
        """Record that `count` bytes were sent. There may be more."""
        assert stream.sent is not None
        stream.sent += count
        self._queue(stream)

    def complete(self, task: TaskId, *, silent: bool = False) -> None:
        """Mark that no process of the task is left, so its files no longer grow. `silent` means
        that there is no byte, and that the task's own report says so.
        """
        known = self.add_task(task)
        known.complete, known.silent = True, silent
        for stream in known.streams.values():
            self._queue(stream)

    def read_to_end(self, stream: Stream) -> list[LogReport]:
        """Mark that everything was sent. Returns the messages to send if the file cannot grow any
        more.
        """
        task = self._tasks.get(stream.id.task)
        if task is None or not task.complete or stream.sent is None or stream.ended:
            return []
        stream.ended = True
        return [EndStream(stream.id, stream.sent), *self.end_of_task(task.id)]

    def end_of_task(self, task: TaskId) -> list[LogReport]:
        """Return the messages to send once all streams of a complete task have ended."""
        known = self._tasks.get(task)
        if known is None or not known.complete or known.end_said or known.stored:
            return []
        if not all(stream.ended for stream in known.streams.values()):
            return []
        if known.silent:
            return []
        known.end_said = True
        return [TaskLogsEnd(task, len(known.streams))]

    def store(self, task: TaskId) -> bool:
        """The coordinator has everything. Returns True if this is new for a task that has ended."""
        known = self._tasks.get(task)
        if known is None or known.stored or not known.end_said:
            return False
        known.stored = True
        return True

    def _queue(self, stream: Stream) -> None:
        if not stream.waiting and stream.room > 0:
            stream.waiting = True
            self._readable.append(stream)
