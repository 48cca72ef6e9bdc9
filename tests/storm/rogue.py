"""Agents that lie within their rights: they have the cluster's join token, and nothing else is true
of them.

Each stands on a machine of its own, `ground`, and speaks the protocol as far as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
import yaml

from agent.link.control import PATH
from agent.link.dialer import ConnectionLostError, Dialer, Websocket
from agent.logs.shipper import PATH as LOGS_PATH
from examples.namespace_cluster import PORT, NamespaceCluster
from examples.rig.machine import Machine
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import COMMAND_BYTES_MAX, ReportFrame, decode_command, encode
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ArrangeTask,
    ForgetTask,
    Heartbeat,
    Hello,
    Inventory,
    NodeObservations,
    Prepared,
    PrepareTask,
    RankReport,
    Refused,
    Report,
    StartTask,
    StopTask,
    TaskReport,
    Welcome,
)
from muster.protocol.link.log_channel import (
    Chunk,
    EndStream,
    LogHello,
    LogReport,
    OpenStream,
    StreamId,
    StreamKind,
    TaskLogsEnd,
    encode_chunk,
    encode_text,
)
from muster.protocol.link.sequencing import Link
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState

PATIENCE_S = 180.0
STREAMS = 20_000
_T = TypeVar("_T")


@dataclass
class Rogue:
    """A forged agent. `hostname` is the machine name it reports, `fields` are of its hello and
    `inventory` of its reported hardware. `refused` is the reason of its refusal."""

    name: str
    address: str
    hostname: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    inventory: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    task: TaskId | None = None
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    has_task: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The task's end was acknowledged."""
    _link: Link = field(default_factory=Link)

    def hello(self) -> Hello:
        inventory = Inventory(self.address, f"machine-{self.name}", cpus=64, memory_bytes=1 << 40)
        said = Hello(
            NodeName(self.name),
            f"agent-{self.name}",
            f"boot-{self.name}",
            "0.1.0",
            NodeObservations(
                msgspec.structs.replace(inventory, hostname=self.hostname, **self.inventory)
            ),
            protocol_max=PROTOCOL_MAX,
        )
        return msgspec.structs.replace(said, **self.fields)

    async def live(self, websocket: Websocket) -> None:
        """Until the connection ends, or this is cancelled."""
        self._link = Link()
        await self.say(websocket, self.hello())
        beat: asyncio.Task[None] | None = None
        try:
            async for message in websocket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                frame = decode_command(message.data)
                self._link.accept(frame.seq)
                match frame.body:
                    case Welcome(heartbeat_s=every_s):
                        self.welcomed.set()
                        beat = asyncio.create_task(self._beat(websocket, every_s))
                    case Refused(code, text):
                        self.refused = f"{code}: {text}"
                        self.welcomed.set()
                        return
                    case other:
                        await self._obey(websocket, other)
        finally:
            if beat is not None:
                beat.cancel()

    async def say(self, websocket: Websocket, report: Report) -> None:
        frame = encode(ReportFrame(self._link.next_seq(), report))
        await websocket.send_frame(frame, aiohttp.WSMsgType.TEXT)

    async def _beat(self, websocket: Websocket, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.say(websocket, Heartbeat(time.monotonic()))

    async def _obey(self, websocket: Websocket, command: object) -> None:
        match command:
            case PrepareTask(task):
                self.task = task
                self.has_task.set()
                await self._report(websocket, task, TaskState.PREPARED)
            case ArrangeTask(task, start=start):
                state = TaskState.STARTED if start else TaskState.ARRANGED
                await self._report(websocket, task, state)
            case StartTask(task):
                await self._report(websocket, task, TaskState.STARTED)
            case StopTask(task):
                await self._report(websocket, task, TaskState.CLEANED)
            case ForgetTask():
                self.task = None
                self.over.set()
            case _:
                pass

    async def _report(self, websocket: Websocket, task: TaskId, state: TaskState) -> None:
        clean = state is TaskState.CLEANED
        ended = ExitStatus(signal=15) if clean else None
        rank = int(task.rpartition(".")[2])
        begun = clean or state is TaskState.STARTED
        report = TaskReport(
            task,
            state,
            prepared=self._prepared(),
            listening=state is not TaskState.PREPARED,
            ranks=(RankReport(rank, pid=1, exit=ended),) if begun else (),
            exit=ended,
            stopped_by="stop" if clean else "",
        )
        await self.say(websocket, report)

    def _prepared(self) -> Prepared:
        return Prepared(
            address=self.address,
            ports=(20001, 20002),
            gpus=0,
            log_dir="/run/log",
            workdir="/run/work",
            scratch="/run/scratch",
            output="/run/output",
            hostfile="/run/hostfile",
            hostname=self.hostname,
        )


class Rogues:
    """All of a test or storm, in a thread that stands on the machine `ground`."""

    def __init__(self, cluster: NamespaceCluster, ground: Machine) -> None:
        settings = yaml.safe_load((cluster.root / "config" / "agent.yaml").read_text())
        self._url = f"https://{cluster.head.address}:{PORT}"
        self._token_file = Path(settings["token_file"])
        self._ca = Path(settings["tls_ca"])
        self._ground = ground
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rogues", daemon=True)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dialer: Dialer | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the rogues' thread did not begin"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)

    def join(self, rogue: Rogue) -> Rogue:
        """Have it say hello; returns when it was welcomed or refused."""
        self.do(self._join(rogue))
        return rogue

    def leave(self, rogue: Rogue) -> None:
        """It goes for good."""
        self.do(self._leave(rogue))

    def await_task(self, rogue: Rogue) -> None:
        """Until it was given one."""
        self.do(asyncio.wait_for(rogue.has_task.wait(), PATIENCE_S))

    def flood(self, rogue: Rogue, streams: int = STREAMS) -> int:
        """Open so many streams of the task that it has, with offsets that jump; how many frames
        went before it was hung up on."""
        assert rogue.task is not None
        return self.do(self._flood(rogue.name, rogue.task, streams))

    def knock(self, times: int) -> int:
        """Connect and go, so many times, as nodes of as many names; how many were welcomed."""
        return self.do(self._knock(times))

    def frames(self, rogue: Rogue, reports: list[Report]) -> None:
        """Say hello, then all of this as fast as it goes, on a connection of its own."""
        self.do(self._frames(rogue, reports))

    def do(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def _run(self) -> None:
        with self._ground.network():
            self._loop.run_until_complete(self._open())
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()
            self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _open(self) -> None:
        self._dialer = Dialer(self._url, self._token_file, self._ca)
        await self._dialer.__aenter__()

    async def _close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        assert self._dialer is not None
        await self._dialer.__aexit__()

    async def _dial(self, path: str = PATH) -> Websocket:
        assert self._dialer is not None
        return await self._dialer.dial(path, COMMAND_BYTES_MAX)

    async def _join(self, rogue: Rogue) -> None:
        self._tasks[rogue.name] = asyncio.create_task(self._stay(rogue))
        await rogue.welcomed.wait()

    async def _leave(self, rogue: Rogue) -> None:
        task = self._tasks.pop(rogue.name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _stay(self, rogue: Rogue) -> None:
        """It comes back for as long as it is let in."""
        while rogue.refused is None:
            with contextlib.suppress(ConnectionLostError, aiohttp.ClientError, OSError):
                websocket = await self._dial()
                try:
                    await rogue.live(websocket)
                finally:
                    await websocket.close()
            await asyncio.sleep(0.2)

    async def _flood(self, name: str, task: TaskId, streams: int) -> int:
        websocket = await self._dial(LOGS_PATH)
        said = 0

        async def say(message: LogReport) -> None:
            nonlocal said
            await websocket.send_str(encode_text(message))
            said += 1

        async def read() -> None:
            async for _ in websocket:
                pass

        reading = asyncio.create_task(read())
        try:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await say(LogHello(NodeName(name), f"agent-{name}"))
                for rank in range(streams):
                    stream = StreamId(task, StreamKind.STDOUT, rank)
                    await say(OpenStream(stream))
                    if rank % 1000 == 0:
                        chunk = Chunk(stream, 1 << (rank // 1000 + 30), 1e18)
                        await websocket.send_bytes(encode_chunk(chunk, b"from nowhere\n"))
                        await say(EndStream(stream, 1 << 62))
                        await say(TaskLogsEnd(TaskId("999999.1.0"), 1 << 40))
        finally:
            reading.cancel()
            await websocket.close()
        return said

    async def _knock(self, times: int) -> int:
        welcomed = 0
        for number in range(times):
            rogue = Rogue(f"knock-{number % 50}", self._ground.address)
            with contextlib.suppress(ConnectionLostError, aiohttp.ClientError, OSError):
                websocket = await self._dial()
                await rogue.say(websocket, rogue.hello())
                message = await websocket.receive(PATIENCE_S)
                welcomed += message.type is aiohttp.WSMsgType.TEXT
                await websocket.close()
        return welcomed

    async def _frames(self, rogue: Rogue, reports: list[Report]) -> None:
        websocket = await self._dial()
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await rogue.say(websocket, rogue.hello())
            for report in reports:
                await rogue.say(websocket, report)
        await websocket.close()
