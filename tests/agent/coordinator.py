"""A coordinator for the tests of the agent: real sockets, the protocol spoken by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Self, TypeVar

import aiohttp
from aiohttp import web

from muster.protocol.ids import SessionId, TaskId
from muster.protocol.link.codec import CommandFrame, decode_report, encode
from muster.protocol.link.control_channel import (
    Command,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Report,
    TaskReport,
    Welcome,
)
from muster.protocol.link.log_channel import (
    Chunk,
    EndStream,
    Hole,
    LogAck,
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

TOKEN = "muster_join_test"
DEADLINE_S = 180.0
_T = TypeVar("_T", bound=Report)


class Session:
    """A control connection to one agent."""

    def __init__(self, websocket: web.WebSocketResponse) -> None:
        self._websocket = websocket
        self._sent = 0
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()
        self.heartbeats = 0
        self.answers = True
        self.last: dict[TaskId, TaskReport] = {}

    async def send(self, command: Command, *, seq: int | None = None) -> None:
        self._sent += 1
        frame = CommandFrame(self._sent if seq is None else seq, command)
        await self._websocket.send_str(encode(frame).decode())

    async def send_text(self, text: str) -> None:
        await self._websocket.send_str(text)

    async def close(self) -> None:
        await self._websocket.close()

    async def expect(self, kind: type[_T], that: Callable[[_T], bool] = lambda _: True) -> _T:
        """The next report of this kind for which `that` holds."""
        report = await self.next(kind, that)
        assert report is not None, f"the agent hung up; last: {self.last}"
        return report

    async def next(self, kind: type[_T], that: Callable[[_T], bool] = lambda _: True) -> _T | None:
        """The same as `expect`; None where the agent hangs up before."""
        async with asyncio.timeout(DEADLINE_S):
            while (report := await self._reports.get()) is not None:
                if isinstance(report, kind) and that(report):
                    return report
        return None

    async def gone(self) -> None:
        """Wait until the agent has hung up."""
        async with asyncio.timeout(DEADLINE_S):
            while await self._reports.get() is not None:
                pass

    async def welcome(self, *keep: TaskId, heartbeat_s: float = 5.0) -> Hello:
        self.hello = await self.expect(Hello)
        await self.send(
            Welcome(
                epoch=1,
                session=SessionId(1),
                heartbeat_s=heartbeat_s,
                version="0",
                keep=keep,
            )
        )
        return self.hello

    async def serve(self) -> None:
        seq = 0
        async for message in self._websocket:
            assert message.type is aiohttp.WSMsgType.TEXT, message
            frame = decode_report(message.data)
            seq += 1
            assert frame.seq == seq
            if isinstance(frame.body, Heartbeat):
                self.heartbeats += 1
                if self.answers:
                    await self.send(HeartbeatAck(frame.body.sent_s))
            elif isinstance(frame.body, TaskReport):
                self.last[frame.body.task] = frame.body
            self._reports.put_nowait(frame.body)
        self._reports.put_nowait(None)


class Store:
    """Everything that the log connections have delivered."""

    def __init__(self) -> None:
        self.hellos: list[LogHello] = []
        self.data: dict[StreamId, bytearray] = {}
        self.holes: dict[StreamId, list[tuple[int, int]]] = {}
        self.ended: dict[StreamId, int] = {}
        self.tasks: dict[TaskId, int] = {}
        self.chunks = 0
        self.cut_at: list[int] = []
        self.offered: Counter[StreamId] = Counter()
        self.not_wanted: set[StreamId] = set()
        self.changed = asyncio.Condition()

    @property
    def bytes(self) -> int:
        return sum(len(data) for data in self.data.values())

    async def until(self, that: Callable[[Store], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(lambda: that(self))

    def size(self, stream: StreamId) -> int:
        holes = self.holes.get(stream, [])
        return len(self.data[stream]) + sum(length for _, length in holes)

    async def serve(self, websocket: web.WebSocketResponse) -> None:
        async for message in websocket:
            if message.type is aiohttp.WSMsgType.BINARY:
                await self._take(websocket, *decode_chunk(message.data))
                if self.cut_at and self.bytes >= self.cut_at[0]:
                    del self.cut_at[0]
                    return
            else:
                await self._hear(websocket, message.data)
            async with self.changed:
                self.changed.notify_all()

    async def _take(self, websocket: web.WebSocketResponse, chunk: Chunk, data: memoryview) -> None:
        stored = self.data[chunk.stream]
        assert chunk.offset == self.size(chunk.stream), "bytes are missing or were sent twice"
        stored += data
        self.chunks += 1
        await websocket.send_str(encode_text(LogAck(chunk.stream, self.size(chunk.stream))))

    async def _hear(self, websocket: web.WebSocketResponse, text: str) -> None:
        match decode_log_report(text):
            case LogHello() as hello:
                self.hellos.append(hello)
            case OpenStream(stream) if stream in self.not_wanted:
                self.offered[stream] += 1
                await websocket.send_str(encode_text(NotWanted(stream, "too many")))
            case OpenStream(stream):
                self.offered[stream] += 1
                self.data.setdefault(stream, bytearray())
                await websocket.send_str(encode_text(StreamAt(stream, self.size(stream))))
            case Hole(stream, offset, length):
                assert offset == self.size(stream)
                self.holes.setdefault(stream, []).append((offset, length))
                await websocket.send_str(encode_text(LogAck(stream, offset + length)))
            case EndStream(stream, length):
                assert length == self.size(stream)
                self.ended[stream] = length
            case TaskLogsEnd(task, streams):
                assert streams == sum(stream.task == task for stream in self.ended)
                self.tasks[task] = streams
                await websocket.send_str(encode_text(TaskLogsStored(task)))


class Coordinator:
    """Listens on a port of 127.0.0.1. Use it as an asynchronous context."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.logs = Store()
        self.refused: list[str] = []
        self.log_connections = 0
        self._sessions: asyncio.Queue[Session] = asyncio.Queue()
        self._socket = socket.create_server(("127.0.0.1", port))
        self._websockets: set[web.WebSocketResponse] = set()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    async def session(self) -> Session:
        """The next control connection."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._sessions.get()

    def drop_all(self) -> None:
        """Cut every connection without a word."""
        for websocket in list(self._websockets):
            sock = websocket.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/agent", self._control)
        app.router.add_get("/v1/agent/logs", self._bulk)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, ssl_context=self._tls).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._runner.cleanup()
        self._socket.close()

    async def _open(self, request: web.Request) -> web.WebSocketResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refused.append(request.headers.get("Authorization", ""))
            raise web.HTTPUnauthorized
        assert not request.query_string
        websocket = web.WebSocketResponse(compress=False, timeout=0.2)
        await websocket.prepare(request)
        self._websockets.add(websocket)
        return websocket

    async def _control(self, request: web.Request) -> web.WebSocketResponse:
        websocket = await self._open(request)
        session = Session(websocket)
        self._sessions.put_nowait(session)
        try:
            await session.serve()
        finally:
            self._websockets.discard(websocket)
        return websocket

    async def _bulk(self, request: web.Request) -> web.WebSocketResponse:
        websocket = await self._open(request)
        self.log_connections += 1
        try:
            await self.logs.serve(websocket)
        finally:
            self._websockets.discard(websocket)
            if request.transport is not None:
                request.transport.abort()
        return websocket
