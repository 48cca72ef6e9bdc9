"""Bulk connections of agents: log bytes go into the store, acknowledgements go back."""

import asyncio
import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final, assert_never

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from muster.daemon.task_owner import TaskOwner
from muster.protocol.codec import ProtocolError, UnknownMessage
from muster.protocol.ids import BadId, NodeName, TaskId, parse_task_id
from muster.protocol.log_channel import (
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
    StreamAt,
    StreamId,
    TaskLogsEnd,
    TaskLogsStored,
    decode_chunk,
    decode_log_report,
    encode_text,
)
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError, NotWantedError
from orchestrator.shell.logs.sync_rounds import Synced

HELLO_TIMEOUT_S: Final = 5.0
# An agent that sends nothing for this many heartbeats, despite pings, is gone. If it is alive, it
# has reconnected by then.
SILENT_BEATS: Final = 6
# Larger frames belong to bulk output and give way to scheduling. Frames of a job that prints its
# steps are smaller and are not delayed.
MUCH_BYTES: Final = 64 * 1024
AGAIN_S: Final = 1.0  # delay before asking again for bytes that could not be stored
AGAIN_MAX: Final = 64  # streams asked for again at a time
UNSAID_MAX: Final = 1024  # pending answers before the agent is read no further
STRANGERS_MAX: Final = 1024  # foreign tasks an agent may send logs of
TURN_S: Final = 0.01  # time for the frames of one agent, before others get their turn
_CLOSE_TIMEOUT_S: Final = 0.5
_FRAME_BYTES_MAX: Final = CHUNK_BYTES_MAX + HEADER_BYTES_MAX + 4
_REASON_BYTES_MAX: Final = 120

_log = structlog.get_logger("muster.logs")


@dataclass(slots=True)
class _Connection:
    """Pending messages to one agent. A newer acknowledgement of a stream replaces an older one."""

    socket: web.WebSocketResponse
    node: NodeName
    acks: dict[StreamId, int] = field(default_factory=dict)
    others: list[LogCommand] = field(default_factory=list)
    asked: dict[StreamId, int] = field(default_factory=dict)
    # Streams that could not be stored; not retried before `again` fires.
    held: dict[StreamId, None] = field(default_factory=dict)  # in order, the longest held first
    holds: Counter[TaskId] = field(default_factory=Counter)  # number of held streams by task
    held_ends: dict[TaskId, int] = field(default_factory=dict)
    again: asyncio.TimerHandle | None = None
    strangers: set[TaskId] = field(default_factory=set)
    late: set[TaskId] = field(default_factory=set)  # tasks of archived jobs
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    broken: bool = False
    # Passed to the store with bytes of this agent.
    synced: Synced = field(default=lambda _stream, _offset: None)

    def acknowledge(self, stream: StreamId, offset: int) -> None:
        self.acks[stream] = offset
        self.filled.set()

    def say(self, command: LogCommand) -> None:
        self.others.append(command)
        self.filled.set()

    def ask(self, stream: StreamId, offset: int) -> None:
        """Ask for bytes from `offset`, once: bytes already in flight will not fit either."""
        if self.asked.get(stream) != offset:
            self.asked[stream] = offset
            self.say(StreamAt(stream, offset))

    async def room(self) -> None:
        """Wait until the agent has read its answers, so that they do not pile up here."""
        while not self.broken and len(self.others) + len(self.acks) >= UNSAID_MAX:
            self.emptied.clear()
            await self.emptied.wait()


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
            connection = _Connection(socket, hello.node)
            connection.synced = partial(self._synced, connection)
            writer = self._owner.spawn(self._write(connection), name=f"logs-{hello.node}")
            try:
                loop = asyncio.get_running_loop()
                until = loop.time() + TURN_S
                while (data := await _frame(socket)) is not None:
                    self.received_bytes += len(data)
                    if len(data) >= MUCH_BYTES:
                        await self._coordinator.give_way()
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

    async def _write(self, connection: _Connection) -> None:
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

    async def _send(self, connection: _Connection, command: LogCommand) -> None:
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

    async def _take(self, connection: _Connection, data: str | bytes) -> None:
        if isinstance(data, bytes):
            chunk, payload = decode_chunk(data)
            if await self._is_ours(connection, chunk.stream.task):
                await self._load(chunk.stream.task)
                self._take_chunk(connection, chunk, payload)
            return
        try:
            message = decode_log_report(data)
        except UnknownMessage:
            return
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
                connection.asked.pop(stream, None)
                self._ask(connection, stream)
            case Hole():
                self._take_hole(connection, message)
            case EndStream(stream, length):
                self._end_stream(connection, stream, length)
            case TaskLogsEnd(task, streams):
                await self._end_task(connection, task, streams)
            case _:
                assert_never(message)

    async def _load(self, task: TaskId) -> None:
        with contextlib.suppress(LogStoreError):  # the next operation raises it again
            await self._store.load(parse_task_id(task)[0])

    def _take_chunk(self, connection: _Connection, chunk: Chunk, payload: memoryview) -> None:
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

    def _take_hole(self, connection: _Connection, hole: Hole) -> None:
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

    def _end_stream(self, connection: _Connection, stream: StreamId, length: int) -> None:
        if stream in connection.held:
            return
        try:
            if not self._store.end(stream, length, connection.synced):
                self._ask(connection, stream)
        except LogStoreError as error:
            self._hold(connection, stream, error)

    async def _end_task(self, connection: _Connection, task: TaskId, streams: int) -> None:
        if connection.holds[task] > 0:
            return  # the agent will send it again
        try:
            stored = await self._store.end_task(task, streams)
        except LogStoreError:
            connection.held_ends[task] = streams
            self._try_later(connection)
            return
        if stored:
            connection.say(TaskLogsStored(task))
        else:
            _log.warning("task_logs_incomplete", task=task, node=connection.node)

    def _ask(self, connection: _Connection, stream: StreamId) -> None:
        try:
            connection.ask(stream, self._store.size(stream))
        except LogStoreError as error:
            self._hold(connection, stream, error)

    def _synced(self, connection: _Connection, stream: StreamId, offset: int | None) -> None:
        """Acknowledge bytes that are on disk. If the disk has failed, ask for them again, later."""
        if offset is not None:
            connection.acknowledge(stream, offset)
        elif not connection.broken:
            self._hold_back(connection, stream)

    def _hold(self, connection: _Connection, stream: StreamId, why: LogStoreError) -> None:
        """Stop storing a stream: for good if it is not wanted, else until a retry."""
        if isinstance(why, NotWantedError):
            connection.say(NotWanted(stream, str(why)))
        else:
            self._hold_back(connection, stream)

    def _hold_back(self, connection: _Connection, stream: StreamId) -> None:
        if stream not in connection.held:
            connection.held[stream] = None
            connection.holds[stream.task] += 1
        self._try_later(connection)

    def _try_later(self, connection: _Connection) -> None:
        if connection.again is None:
            loop = asyncio.get_running_loop()
            connection.again = loop.call_later(AGAIN_S, self._try_again, connection)

    def _try_again(self, connection: _Connection) -> None:
        """Ask again for the streams held longest. Those still without room are held again."""
        connection.again = None
        for stream in list(itertools.islice(connection.held, AGAIN_MAX)):
            del connection.held[stream]
            connection.holds[stream.task] -= 1
            if not self._has_room(stream):
                self._hold_back(connection, stream)  # asking would transfer bytes in vain
                continue
            connection.asked.pop(stream, None)
            self._ask(connection, stream)
        for task in list(itertools.islice(connection.held_ends, AGAIN_MAX)):
            streams = connection.held_ends.pop(task)
            self._owner.spawn(self._end_task(connection, task, streams), name=f"logs-end-{task}")
        if connection.held or connection.held_ends:
            self._try_later(connection)

    def _has_room(self, stream: StreamId) -> bool:
        try:
            return self._store.has_room(stream)
        except LogStoreError:
            return False

    async def _is_ours(self, connection: _Connection, name: TaskId) -> bool:
        """Whether the task runs or ran on this node. Otherwise its logs stay on the node."""
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
