"""Log shipper: sends log bytes to the coordinator over a separate connection.

The ranks write files and never wait for the agent. The file is the buffer: a slow or absent
coordinator only means a longer unsent part. One coroutine reads and sends, a chunk of each stream
in turn; another receives.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import aiohttp
import structlog

from agent.core.shim_protocol import ShimStream
from agent.link.dialer import ConnectionLostError, Dialer, Websocket, stay_connected
from agent.logs.inotify import Inotify
from agent.logs.log_file import LogSource
from agent.logs.offsets import LogOffsets, Stream
from agent.shim.system.job_files import RefusedFileError
from muster.daemon.clock import Clock
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import FRAME_BYTES_MAX, ProtocolError, UnknownMessage
from muster.protocol.link.log_channel import (
    STREAMS_PER_TASK_MAX,
    Chunk,
    Hole,
    LogAck,
    LogHello,
    LogReport,
    NotWanted,
    StreamAt,
    StreamId,
    StreamKind,
    TaskLogsStored,
    decode_log_command,
    encode_chunk,
    encode_text,
)

PATH: Final = "/v1/agent/logs"
# For files that do not exist yet, and for files without an inotify watch.
_POLL_S: Final = 0.5
_POLLED_MAX: Final = 256  # files per round: each costs a few system calls
# The connection is reopened after this many missed heartbeats. More than on the control link,
# because on a slow line whole chunks precede the answer.
SILENT_BEATS: Final = 4

_log = structlog.get_logger("agent.logs")


class LogShipper:
    """Ships the logs of all tasks. `stored` is called when the coordinator has all logs of a
    task.
    """

    def __init__(
        self,
        dialer: Dialer,
        clock: Clock,
        node: NodeName,
        agent_id: str,
        stored: Callable[[TaskId], None],
    ) -> None:
        self._dialer = dialer
        self._clock = clock
        self._hello = LogHello(node, agent_id)
        self._stored = stored
        self._ledger = LogOffsets()
        self._folders: dict[TaskId, Path] = {}
        self._sources: dict[StreamId, _Tail] = {}
        # Streams without a byte so far, and their paths. Most stay empty and need no message.
        self._empty_streams: dict[StreamId, str] = {}
        self._named: dict[TaskId, set[StreamId]] = {}  # all streams that were followed
        self._full: set[TaskId] = set()  # their further streams are not sent
        self._say: deque[LogReport] = deque()
        self._wake = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._heartbeat_s = 5.0
        self._work = asyncio.Event()
        self._unwatched: dict[StreamId, None] = {}
        self._unopened: set[StreamId] = set()  # for lack of descriptors
        self._unfinished: set[TaskId] = set()  # complete, except for those
        self._inotify: Inotify | None = None
        self._watches = False  # inotify was tried

    # --- called by the owner ----------------------------------------------------------------------

    def welcomed(self, heartbeat_s: float) -> None:
        """Allow connections: the coordinator knows this agent now, and would have refused
        before.
        """
        self._heartbeat_s = heartbeat_s
        self._welcomed.set()

    def follow(self, task: TaskId, folder: Path, streams: tuple[ShimStream, ...]) -> None:
        """Follow files of the task, which exist or will. Their paths are relative to `folder`."""
        self._folders[task] = folder
        self._ledger.add_task(task)
        for known in streams:
            kind = _KINDS.get(known.stream)
            if kind is None:
                continue
            stream = StreamId(task, kind, known.rank)
            if stream in self._named.setdefault(task, set()) or self._is_full(task):
                continue
            self._named[task].add(stream)
            self._empty_streams[stream] = known.path
            self._look(stream)
        self._work.set()

    def _is_full(self, task: TaskId) -> bool:
        full = len(self._named[task]) >= STREAMS_PER_TASK_MAX
        if full and task not in self._full:
            self._full.add(task)
            why = f"a task has at most {STREAMS_PER_TASK_MAX} logs; the others are not sent"
            _log.warning("too_many_logs", task=task, why=why)
        return full

    def complete(self, task: TaskId, *, reported: bool = True) -> bool:
        """Mark that no process of the task is left, and that all its streams have been named.
        Returns True if the task has written nothing and its report must say so; nothing is sent
        here then. Without `reported`, its report does not cover the logs, or an earlier agent
        process may have sent some of them.
        """
        return self._end(task, reported=reported)

    def _end(self, task: TaskId, *, reported: bool) -> bool:
        for stream in self._empty_streams_of(task):
            self._look(stream)
            if stream not in self._unopened and self._empty_streams.pop(stream, None) is not None:
                self._close_source(stream)
        if self._empty_streams_of(task):
            self._unfinished.add(task)
            return False
        known = self._ledger.add_task(task)
        if known.complete or task in self._unfinished:
            # An announced end stays true, whatever the shim reports later.
            reported = known.silent
        self._unfinished.discard(task)
        silent = reported and not known.streams and not known.refused
        self._ledger.complete(task, silent=silent)
        for message in self._ledger.end_of_task(task):
            self._send_report(message)
        self._work.set()
        self._wake.set()
        return silent

    def drop(self, task: TaskId) -> None:
        """Drop a task whose directory is about to be removed."""
        known = self._ledger.task(task)
        quiet = self._empty_streams_of(task)
        for stream in (*known.streams, *quiet) if known is not None else quiet:
            self._close_source(stream)
            self._empty_streams.pop(stream, None)
        self._unfinished.discard(task)
        self._full.discard(task)
        self._named.pop(task, None)
        self._ledger.drop(task)
        self._folders.pop(task, None)

    # --- the connection ---------------------------------------------------------------------------

    async def run(self) -> Never:
        """Ship until cancelled. Connects only if there is something to ship."""
        poll = asyncio.get_running_loop().create_task(self._poll(), name="agent.logs.poll")
        try:
            await self._welcomed.wait()
            await self._work.wait()
            await stay_connected(
                self._dialer,
                PATH,
                FRAME_BYTES_MAX,
                self._converse,
                hurry=self._welcomed,
                silence_s=lambda: SILENT_BEATS * self._heartbeat_s,
            )
        finally:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            for stream in list(self._sources):
                self._close_source(stream)
            if self._inotify is not None:
                self._inotify.close()

    async def _converse(self, websocket: Websocket) -> str:
        self._say.clear()
        self._say.append(self._hello)
        self._say.extend(self._ledger.reconnect())
        self._wake.set()
        self._progress = False
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._listen(websocket), name="agent.logs.listen"),
            loop.create_task(self._speak(websocket), name="agent.logs.speak"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        why = _why(ends)
        if not self._progress:
            # A peer that accepts connections but no data is dialed with growing pauses.
            raise ConnectionLostError(why)
        return why

    async def _listen(self, websocket: Websocket) -> str:
        async for message in websocket:
            if message.type is aiohttp.WSMsgType.ERROR:
                raise ConnectionError(str(message.data))
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ProtocolError(f"a {message.type.name} frame on the log connection")
            try:
                command = decode_log_command(message.data)
            except UnknownMessage:
                continue
            match command:
                case StreamAt():
                    self._ledger.at(command.stream, command.offset)
                case LogAck():
                    self._progress = True
                    self._ledger.acked(command.stream, command.offset)
                case NotWanted(stream, why):
                    self._refuse(stream, why)
                case TaskLogsStored():
                    self._progress = True
                    if self._ledger.store(command.task):
                        self._close_task(command.task)
                        self._stored(command.task)
            self._wake.set()
        return f"the coordinator closed the log connection ({websocket.close_code})"

    def _refuse(self, stream: StreamId, why: str) -> None:
        """The coordinator refuses this stream for good. Its file stays until the task is
        removed.
        """
        task = self._ledger.task(stream.task)
        if task is not None and not task.refused:
            _log.warning("log_not_wanted", task=stream.task, stream=stream.kind.value, why=why)
        for message in self._ledger.refuse(stream):
            self._send_report(message)
        self._close_source(stream)

    async def _speak(self, websocket: Websocket) -> Never:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while True:
                while self._say:
                    message = encode_text(self._say.popleft()).encode()
                    await websocket.send_frame(message, aiohttp.WSMsgType.TEXT)
                stream = self._ledger.next_readable()
                if stream is None:
                    break
                await self._send_chunk(websocket, stream)
                # A storm of log bytes must not delay the control link.
                await asyncio.sleep(0)

    async def _send_chunk(self, websocket: Websocket, stream: Stream) -> None:
        assert stream.sent is not None
        data = self._read(stream)
        if not data:
            self._say.extend(self._ledger.read_to_end(stream))
            return
        now = self._clock.now().wall
        if isinstance(data, int):
            hole = Hole(stream.id, stream.sent, data, now)
            self._ledger.sent(stream, data)
            await websocket.send_frame(encode_text(hole).encode(), aiohttp.WSMsgType.TEXT)
            return
        chunk = Chunk(stream.id, stream.sent, now)
        # Count first: while sending waits, the acknowledgement may arrive.
        self._ledger.sent(stream, len(data))
        await websocket.send_frame(encode_chunk(chunk, data), aiohttp.WSMsgType.BINARY)

    def _send_report(self, message: LogReport | None) -> None:
        if message is not None:
            # Without a connection, the next one discards this and sends everything again.
            self._say.append(message)
            self._wake.set()

    # --- the files --------------------------------------------------------------------------------

    def _read(self, stream: Stream) -> bytes | int:
        """Return the next bytes, or the length of the next hole."""
        tail = self._sources.get(stream.id) or self._open(stream.id, stream.path)
        if tail is None or tail.source is None:
            return b""
        assert stream.sent is not None
        try:
            return tail.source.take(stream.sent, stream.room)
        except OSError as error:
            _log.error("log_unreadable", stream=stream.path, why=error.strerror)
            tail.source.close()
            tail.source = None
            return b""

    def _empty_streams_of(self, task: TaskId) -> list[StreamId]:
        return [stream for stream in self._empty_streams if stream.task == task]

    def _look(self, stream: StreamId) -> None:
        """Check a stream whose file may have new bytes, possibly its first ones."""
        known = self._ledger.stream(stream)
        path = self._empty_streams.get(stream)
        if path is not None:
            tail = self._sources.get(stream) or self._open(stream, path)
            if tail is None or tail.source is None or tail.source.size() == 0:
                return
            del self._empty_streams[stream]
            self._send_report(self._ledger.add_stream(stream, path))
        elif known is not None:
            self._ledger.grown(known)
            self._wake.set()

    def _open(self, stream: StreamId, path: str) -> _Tail | None:
        folder = self._folders.get(stream.task)
        if folder is None:
            return None
        known = stream in self._unopened
        self._unopened.discard(stream)
        try:
            source = LogSource.open(folder, path)
        except RefusedFileError as error:
            _log.warning("log_refused", task=stream.task, why=str(error))
            tail = self._sources[stream] = _Tail(None, None)
            return tail
        except OSError as error:
            if not known:
                _log.warning("log_not_opened", task=stream.task, why=error.strerror)
            self._unopened.add(stream)
            source = None
        if source is None:
            self._unwatched[stream] = None
            return None
        tail = self._sources[stream] = _Tail(source, self._watch(source, stream))
        if tail.watch is not None:
            self._unwatched.pop(stream, None)
        return tail

    def _watch(self, source: LogSource, stream: StreamId) -> int | None:
        if not self._watches:
            self._watches, self._inotify = True, _inotify()
        if self._inotify is not None:
            try:
                return self._inotify.watch(source.fileno(), lambda: self._look(stream))
            except OSError as error:
                _log.warning(
                    "log_not_watched",
                    why=f"{error.strerror}; raise fs.inotify.max_user_watches",
                    looked_at_every_s=_POLL_S,
                )
        self._unwatched[stream] = None
        return None

    async def _poll(self) -> Never:
        while True:
            await asyncio.sleep(_POLL_S)
            # Dictionaries keep their order, so polled streams move to the end.
            for stream in list(itertools.islice(self._unwatched, _POLLED_MAX)):
                del self._unwatched[stream]
                self._unwatched[stream] = None
                self._look(stream)
            for task in list(self._unfinished):
                self._end(task, reported=False)

    def _close_task(self, task: TaskId) -> None:
        known = self._ledger.task(task)
        for stream in known.streams if known is not None else ():
            self._close_source(stream)

    def _close_source(self, stream: StreamId) -> None:
        self._unwatched.pop(stream, None)
        self._unopened.discard(stream)
        tail = self._sources.pop(stream, None)
        if tail is None:
            return
        if tail.watch is not None and self._inotify is not None:
            self._inotify.unwatch(tail.watch)
        if tail.source is not None:
            tail.source.close()


class _Tail:
    """An open file and its watch. Without a source, the file may not be read."""

    __slots__ = ("source", "watch")

    def __init__(self, source: LogSource | None, watch: int | None) -> None:
        self.source = source
        self.watch = watch


_KINDS: Final = {kind.value: kind for kind in StreamKind}


def _inotify() -> Inotify | None:
    try:
        return Inotify()
    except OSError as error:
        _log.warning(
            "no_inotify",
            why=f"{error.strerror}; raise fs.inotify.max_user_instances",
            looked_at_every_s=_POLL_S,
        )
        return None


def _why(ends: list[str | BaseException]) -> str:
    """Return why a connection ended. Raises an error that is not a network error."""
    why = ""
    for end in ends:
        match end:
            case str():
                why = why or end
            case ProtocolError():
                why = f"the coordinator's message was not understood: {end}"
            case aiohttp.ClientError() | OSError():
                why = why or f"the log connection failed: {end}"
            case asyncio.CancelledError():
                continue
            case _:
                raise end
    return why
