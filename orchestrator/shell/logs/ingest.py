"""Bulk connections of agents: log bytes go into the store, acknowledgements go back.

The loop queues what concerns a stream for the store's writer, in order, up to a bound. While the
log disk does not answer, frames are dropped and their streams wait on their nodes, as with a full
disk: they are asked for once it answers.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, assert_never

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from muster.daemon.task_owner import TaskOwner
from muster.daemon.tls import peer_fingerprint
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.link.codec import ProtocolError, UnknownMessage
from muster.protocol.link.log_channel import (
    CHUNK_BYTES_MAX,
    HEADER_BYTES_MAX,
    Chunk,
    EndStream,
    Hole,
    LogAck,
    LogCommand,
    LogHello,
    NotWanted,
    OpenStream,
    StreamId,
    TaskLogsEnd,
    TaskLogsStored,
    decode_chunk,
    decode_log_report,
    encode_text,
)
from orchestrator.core.nodes.enrolment import refuse_certificate
from orchestrator.core.rights.link import node_may_send
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.connection import LogConnection
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError, NotWantedError

HELLO_TIMEOUT_S: Final = 5.0
# An agent that sends nothing for this many heartbeats, despite pings, is gone. If it is alive, it
# has reconnected by then.
SILENT_BEATS: Final = 6
# Larger frames belong to bulk output and give way to scheduling. Frames of a job that prints its
# steps are smaller and are not delayed.
MUCH_BYTES: Final = 64 * 1024
AGAIN_S: Final = 1.0  # delay before asking again for bytes that could not be stored
AGAIN_MAX: Final = 64  # streams asked for again at a time
QUEUED_MAX: Final = 64  # frames of one agent that wait for the writer
QUEUED_BYTES_MAX: Final = 2 * CHUNK_BYTES_MAX  # of one agent
ALL_QUEUED_BYTES_MAX: Final = 64 << 20  # of all; beyond it, each agent has one frame
ENDING_MAX: Final = 64  # ends of tasks of one agent that are being put on disk
LOAD_S: Final = 5.0  # time for the streams of a job to load, before the next frame is looked at
STRANGERS_MAX: Final = 1024  # foreign tasks an agent may send logs of
TURN_S: Final = 0.01  # time for the frames of one agent, before others get their turn
_LOOK_EVERY_S: Final = 1.0  # whether the disk answers
_CLOSE_TIMEOUT_S: Final = 0.5
_FRAME_BYTES_MAX: Final = CHUNK_BYTES_MAX + HEADER_BYTES_MAX + 4
_REASON_BYTES_MAX: Final = 120

_log = structlog.get_logger("muster.logs")


class LogIngest:
    """Serves the bulk connections. An agent may deliver logs of its own node's tasks only."""

    def __init__(
        self,
        owner: TaskOwner,
        store: LogStore,
        coordinator: Coordinator,
        *,
        connections_max: int,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._owner = owner
        self._store = store
        self._coordinator = coordinator
        self._max = connections_max
        self._ping_s = SILENT_BEATS * heartbeat_s / 1.5
        self._sockets: set[web.WebSocketResponse] = set()
        self._queued_bytes = 0
        self.received_bytes = self.sent_bytes = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle a bulk connection, from its hello to its end."""
        socket = web.WebSocketResponse(
            compress=False,
            max_msg_size=_FRAME_BYTES_MAX,
            timeout=_CLOSE_TIMEOUT_S,
            heartbeat=self._ping_s,
        )
        await socket.prepare(request)
        if len(self._sockets) >= self._max or self._coordinator.changes.closed:
            await _close(
                socket, WSCloseCode.TRY_AGAIN_LATER, "no further connection is accepted now"
            )
            return socket
        self._sockets.add(socket)
        writer: asyncio.Task[None] | None = None
        try:
            hello = await self._hello(socket)
            bad = refuse_certificate(
                self._coordinator.state, hello.node, peer_fingerprint(request.transport)
            )
            if bad is not None:
                raise ProtocolError(bad.text)
            connection = LogConnection(socket, hello.node)
            connection.post = self._store.writer.post
            connection.synced = partial(self._synced, connection)
            writer = self._owner.spawn(self._write(connection), name=f"logs-{hello.node}")
            try:
                loop = asyncio.get_running_loop()
                until = loop.time() + TURN_S
                while (data := await _frame(socket)) is not None:
                    self.received_bytes += len(data)
                    if len(data) >= MUCH_BYTES:
                        await self._coordinator.yield_to_scheduling()
                    elif loop.time() >= until:
                        # Frames that have arrived are read without waiting, however many there are,
                        # and the first byte of each stream creates two files. So yield to others.
                        await asyncio.sleep(0)
                        until = loop.time() + TURN_S
                    await self._take(connection, data)
                    await connection.room()
            finally:
                connection.broken = True
                if connection.again is not None:
                    connection.again.cancel()
        except (ProtocolError, BadId) as error:
            _log.warning("log_protocol_error", why=str(error), peer=request.remote)
            await _close(socket, WSCloseCode.POLICY_VIOLATION, str(error))
        finally:
            self._sockets.discard(socket)
            if writer is not None:
                writer.cancel()
        return socket

    async def _write(self, connection: LogConnection) -> None:
        try:
            while True:
                await connection.filled.wait()
                connection.filled.clear()
                others, connection.others = connection.others, []
                acks, connection.acks = connection.acks, {}
                connection.emptied.set()
                for stream, offset in acks.items():
                    await self._send(connection, LogAck(stream, offset))
                for command in others:
                    await self._send(connection, command)
        except ConnectionError:
            return  # the reader sees the disconnect as well
        finally:
            connection.broken = True
            connection.emptied.set()

    async def _send(self, connection: LogConnection, command: LogCommand) -> None:
        text = encode_text(command)
        self.sent_bytes += len(text)
        await connection.socket.send_str(text)

    async def close_all(self) -> None:
        """Close all connections; the agents reconnect to the next process."""
        await asyncio.gather(
            *(_close(s, WSCloseCode.GOING_AWAY, "restarting") for s in list(self._sockets))
        )

    async def _hello(self, socket: web.WebSocketResponse) -> LogHello:
        """Return the first message, from an agent that is registered or is about to be."""
        coordinator = self._coordinator
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                data = await _frame(socket)
                if not isinstance(data, str):
                    raise ProtocolError("the first message is not a hello")
                hello = decode_log_report(data)
                if not isinstance(hello, LogHello):
                    raise ProtocolError("the first message is not a hello")
                while True:
                    seen = coordinator.changes.count(hello.node)
                    node = coordinator.state.nodes.get(hello.node)
                    if node is not None and node.agent_id == hello.agent_id:
                        return hello
                    await coordinator.changes.wait({hello.node: seen})
                    if coordinator.changes.closed:
                        raise ProtocolError("the coordinator is stopping")
        except TimeoutError:
            raise ProtocolError(
                f"no hello of a registered agent within {HELLO_TIMEOUT_S:g} s"
            ) from None

    async def _take(self, connection: LogConnection, data: str | bytes) -> None:
        if isinstance(data, bytes):
            chunk, payload = decode_chunk(data)
            if await self._is_ours(connection, chunk.stream.task):
                await self._load(chunk.stream.task)
                take = partial(self._take_chunk, connection, chunk, payload)
                await self._queue(connection, chunk.stream, take, len(data))
            return
        try:
            message = decode_log_report(data)
        except UnknownMessage:
            return
        if not node_may_send(type(message)):
            raise ProtocolError(f"a node may not send {type(message).__name__}")
        if not isinstance(message, LogHello) and not await self._is_ours(
            connection, _task_of(message)
        ):
            return
        if not isinstance(message, LogHello):
            await self._load(_task_of(message))
        match message:
            case LogHello():
                raise ProtocolError("a second hello on the same connection")
            case OpenStream(stream):
                await self._queue(connection, stream, partial(self._open, connection, stream))
            case Hole(stream):
                take = partial(self._take_hole, connection, message)
                await self._queue(connection, stream, take)
            case EndStream(stream, length):
                end = partial(self._end_stream, connection, stream, length)
                await self._queue(connection, stream, end)
            case TaskLogsEnd(task, streams):
                self._begin_end(connection, task, streams)
            case _:
                assert_never(message)

    async def _queue(
        self, connection: LogConnection, stream: StreamId, work: Callable[[], None], size: int = 0
    ) -> None:
        """Queue work of a frame of `size` bytes, or drop the frame if the disk does not answer."""
        while not self._store.writer.is_stalled:
            if connection.error is not None:
                raise connection.error
            if not connection.queued or (
                connection.queued < QUEUED_MAX
                and connection.queued_bytes < QUEUED_BYTES_MAX
                and self._queued_bytes < ALL_QUEUED_BYTES_MAX
            ):
                connection.queued += 1
                connection.queued_bytes += size
                self._queued_bytes += size
                self._store.writer.submit(work, partial(self._worked, connection, size))
                return
            await _event(connection.worked)
        if stream not in connection.missed:
            connection.missed[stream] = None
            if size:
                self._store.hold(stream)
        self._try_later(connection)

    def _worked(self, connection: LogConnection, size: int, error: BaseException | None) -> None:
        connection.queued -= 1
        connection.queued_bytes -= size
        self._queued_bytes -= size
        connection.error = connection.error or error
        connection.worked.set()

    async def _load(self, task: TaskId) -> None:
        # The next operation raises the error again, or says that the streams are being loaded.
        with contextlib.suppress(LogStoreError, TimeoutError):
            async with asyncio.timeout(LOAD_S):
                await self._store.load(parse_task_id(task)[0])

    def _open(self, connection: LogConnection, stream: StreamId) -> None:
        connection.asked.pop(stream, None)
        self._ask(connection, stream)

    def _take_chunk(self, connection: LogConnection, chunk: Chunk, payload: memoryview) -> None:
        stream = chunk.stream
        if stream in connection.held:
            return
        try:
            taken = self._store.append(stream, chunk.offset, payload, chunk.ts, connection.synced)
        except LogStoreError as error:
            self._hold(connection, stream, error)
            return
        if taken is None:
            self._ask(connection, stream)
        else:
            connection.asked.pop(stream, None)

    def _take_hole(self, connection: LogConnection, hole: Hole) -> None:
        stream = hole.stream
        if stream in connection.held:
            return
        try:
            taken = self._store.skip(stream, hole.offset, hole.length, hole.ts, connection.synced)
        except LogStoreError as error:
            self._hold(connection, stream, error)
            return
        if taken is None:
            self._ask(connection, stream)
        else:
            connection.asked.pop(stream, None)

    def _end_stream(self, connection: LogConnection, stream: StreamId, length: int) -> None:
        if stream in connection.held:
            return
        try:
            if not self._store.end(stream, length, connection.synced):
                self._ask(connection, stream)
        except LogStoreError as error:
            self._hold(connection, stream, error)

    def _begin_end(self, connection: LogConnection, task: TaskId, streams: int) -> None:
        """Put the end of a task on disk, while further frames are read."""
        if task in connection.ending:
            return
        if len(connection.ending) >= ENDING_MAX or self._store.writer.is_stalled:
            connection.held_ends[task] = streams
            self._try_later(connection)
            return
        connection.ending.add(task)
        self._owner.spawn(self._end_task(connection, task, streams), name=f"logs-end-{task}")

    async def _end_task(self, connection: LogConnection, task: TaskId, streams: int) -> None:
        try:
            # After the frames before it.
            held = await self._store.writer.call(lambda: connection.holds[task] > 0)
            if held or any(stream.task == task for stream in connection.missed):
                return  # the agent will send it again
            stored = await self._store.end_task(task, streams)
        except LogStoreError:
            connection.held_ends[task] = streams
            self._try_later(connection)
            return
        finally:
            connection.ending.discard(task)
        if stored:
            connection.say(TaskLogsStored(task))
        else:
            _log.warning("task_logs_incomplete", task=task, node=connection.node)

    def _ask(self, connection: LogConnection, stream: StreamId) -> None:
        try:
            connection.ask(stream, self._store.size(stream))
        except LogStoreError as error:
            self._hold(connection, stream, error)

    def _synced(self, connection: LogConnection, stream: StreamId, offset: int | None) -> None:
        """Acknowledge bytes that are on disk. If the disk has failed, the writer calls this, to ask
        for them again, later.
        """
        if offset is not None:
            connection.acknowledge(stream, offset)
        elif not connection.broken:
            self._hold_back(connection, stream)

    def _hold(self, connection: LogConnection, stream: StreamId, why: LogStoreError) -> None:
        """Stop storing a stream: for good if it is not wanted, else until a retry."""
        if isinstance(why, NotWantedError):
            connection.post(connection.say, NotWanted(stream, str(why)))
        else:
            self._hold_back(connection, stream)

    def _hold_back(self, connection: LogConnection, stream: StreamId) -> None:
        if stream not in connection.held:
            connection.held[stream] = None
            connection.holds[stream.task] += 1
        connection.post(self._try_later, connection)

    def _try_later(self, connection: LogConnection) -> None:
        if connection.again is None and not connection.broken:
            loop = asyncio.get_running_loop()
            connection.again = loop.call_later(AGAIN_S, self._try_again, connection)

    def _try_again(self, connection: LogConnection) -> None:
        """Ask again for the streams that wait, if the disk answers, and end the tasks that wait."""
        connection.again = None
        if self._store.writer.is_stalled:
            self._try_later(connection)
            return
        missed, connection.missed = connection.missed, {}
        ask = partial(self._ask_again, connection, missed)
        self._store.writer.submit(ask, partial(self._asked_again, connection))
        for task in list(itertools.islice(connection.held_ends, AGAIN_MAX)):
            self._begin_end(connection, task, connection.held_ends.pop(task))

    def _asked_again(self, connection: LogConnection, error: BaseException | None) -> None:
        connection.error = connection.error or error

    def _ask_again(self, connection: LogConnection, missed: Iterable[StreamId] = ()) -> None:
        """Ask for the streams held longest. Those still without room are held again."""
        for stream in missed:
            self._hold_back(connection, stream)
        for stream in list(itertools.islice(connection.held, AGAIN_MAX)):
            del connection.held[stream]
            connection.holds[stream.task] -= 1
            if not self._has_room(stream):
                self._hold_back(connection, stream)  # asking would transfer bytes in vain
                continue
            connection.asked.pop(stream, None)
            self._ask(connection, stream)
        if connection.held:
            connection.post(self._try_later, connection)

    def _has_room(self, stream: StreamId) -> bool:
        try:
            return self._store.has_room(stream)
        except LogStoreError:
            return False

    async def _is_ours(self, connection: LogConnection, name: TaskId) -> bool:
        """True if the task runs or ran on this node. Otherwise its logs stay on the node."""
        task = self._coordinator.state.task(name)
        if (task is not None and task.node == connection.node) or name in connection.late:
            return True
        if name in connection.strangers or len(connection.strangers) >= STRANGERS_MAX:
            return False
        number, attempt, rank = parse_task_id(name)
        job = await self._coordinator.job(number)
        task = None if job is None else job.task(attempt, rank)
        if task is not None and task.node == connection.node:
            connection.late.add(name)
            return True
        connection.strangers.add(name)
        why = f"no job has such a task: its log stays on the node, in tasks/{name}"
        _log.warning("logs_of_a_foreign_task", task=name, node=connection.node, why=why)
        return False


def _task_of(message: OpenStream | Hole | EndStream | TaskLogsEnd) -> TaskId:
    return message.task if isinstance(message, TaskLogsEnd) else message.stream.task


async def _event(event: asyncio.Event) -> None:
    """Wait for an event, but not for long."""
    event.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_EVERY_S):
            await event.wait()


async def _frame(socket: web.WebSocketResponse) -> str | bytes | None:
    """Return the next frame, or None if the connection has ended. Raises ProtocolError."""
    message = await socket.receive()
    match message.type:
        case WSMsgType.TEXT | WSMsgType.BINARY:
            data: str | bytes = message.data
            return data
        case WSMsgType.CLOSE | WSMsgType.CLOSING | WSMsgType.CLOSED:
            return None
        case WSMsgType.ERROR if isinstance(message.data, TimeoutError):
            return None  # the ping timed out
        case _:
            raise ProtocolError(f"not a supported websocket frame: {message.data}")


async def _close(socket: web.WebSocketResponse, code: int, why: str) -> None:
    try:
        await socket.close(
            code=code, message=why.encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()
        )
    except ConnectionError:
        return
