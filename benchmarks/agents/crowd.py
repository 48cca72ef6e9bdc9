"""Many agents in one process: real websockets, the protocol, and nothing behind it.

Run by the benchmark, which writes one command a line to standard input and reads one line of JSON
for each. `connect` opens what is not open, all at once; `drop` cuts every connection, like a switch
that loses power; `prepared N` waits until N agents have received a PrepareTask; `quit` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import ssl
import sys
import time
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import Final

import aiohttp

from muster.protocol.ids import NodeName
from muster.protocol.link.codec import ReportFrame, decode_command, encode
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ForgetTask,
    Heartbeat,
    Hello,
    Inventory,
    NodeObservations,
    PrepareTask,
    Report,
    StopTask,
    TaskReport,
    Welcome,
)
from muster.protocol.link.log_channel import LogHello, encode_text
from muster.protocol.link.sequencing import Link
from muster.protocol.states import TaskState

_PATIENCE_S: Final = 300.0
_DIALS_AT_ONCE: Final = 256  # limited by the backlog of a listening socket
_FRAME_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class Agent:
    """The two connections of a node."""

    name: NodeName
    control: aiohttp.ClientWebSocketResponse | None = None
    logs: aiohttp.ClientWebSocketResponse | None = None
    link: Link = field(default_factory=Link)
    heartbeat_s: float = 5.0
    welcome: asyncio.Event = field(default_factory=asyncio.Event)
    notified: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def say(self, report: Report) -> None:
        assert self.control is not None
        frame = encode(ReportFrame(self.link.next_seq(), report))
        await self.control.send_frame(frame, aiohttp.WSMsgType.TEXT)


class Crowd:
    """All agents."""

    def __init__(self, number: int, url: str, token: str, ca: str, *, logs: bool) -> None:
        self._agents = [Agent(NodeName(f"node-{n:05d}")) for n in range(number)]
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._tls = ssl.create_default_context(cafile=ca) if ca else True
        self._logs = logs
        self._dials = asyncio.Semaphore(_DIALS_AT_ONCE)

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            while (command := (await reader.readline()).decode().strip()) not in ("", "quit"):
                began = time.perf_counter()
                async with asyncio.timeout(_PATIENCE_S):
                    match command:
                        case "connect":
                            await asyncio.gather(*(self._join(session, a) for a in self._agents))
                        case "drop":
                            self._drop()
                        case notified if notified.startswith("prepared "):
                            await self._notified(int(notified.split()[1]))
                        case _:
                            raise SystemExit(f"no such command: {command}")
                print(json.dumps({"s": time.perf_counter() - began}), flush=True)

    async def _notified(self, number: int) -> None:
        waits = [asyncio.create_task(agent.notified.wait()) for agent in self._agents]
        for wait in itertools.islice(asyncio.as_completed(waits), number):
            await wait
        for task in waits:
            task.cancel()

    async def _join(self, session: aiohttp.ClientSession, agent: Agent) -> None:
        async with self._dials:
            agent.link = Link()
            agent.control = await self._dial(session, "/v1/agent")
            await agent.say(_hello(agent.name))
            agent.tasks = [asyncio.create_task(self._hear(agent))]
            await agent.welcome.wait()
        agent.tasks.append(asyncio.create_task(self._beat(agent)))
        if self._logs:
            agent.logs = await self._dial(session, "/v1/agent/logs")
            await agent.logs.send_str(encode_text(LogHello(agent.name, f"agent-{agent.name}")))

    async def _dial(
        self, session: aiohttp.ClientSession, path: str
    ) -> aiohttp.ClientWebSocketResponse:
        return await session.ws_connect(
            self._url + path,
            headers=self._headers,
            ssl=self._tls,
            max_msg_size=_FRAME_BYTES_MAX,
            autoclose=False,
        )

    async def _hear(self, agent: Agent) -> None:
        assert agent.control is not None
        async for message in agent.control:
            frame = decode_command(message.data)
            agent.link.accept(frame.seq)
            match frame.body:
                case Welcome() as welcome:
                    agent.heartbeat_s = welcome.heartbeat_s
                    agent.welcome.set()
                case PrepareTask():
                    agent.notified.set()
                case StopTask(task):
                    await agent.say(TaskReport(task, TaskState.CLEANED))
                case ForgetTask():
                    agent.notified.clear()
                case _:
                    pass

    async def _beat(self, agent: Agent) -> None:
        await asyncio.sleep(agent.heartbeat_s * random.random())
        with contextlib.suppress(ConnectionError):
            while True:
                await agent.say(Heartbeat(time.monotonic()))
                await asyncio.sleep(agent.heartbeat_s)

    def _drop(self) -> None:
        for agent in self._agents:
            for task in agent.tasks:
                task.cancel()
            agent.welcome.clear()
            for socket in (agent.control, agent.logs):
                if socket is not None and (raw := socket.get_extra_info("socket")) is not None:
                    raw.shutdown(SHUT_RDWR)
            agent.control = agent.logs = None


def _hello(name: NodeName) -> Hello:
    inventory = Inventory(address="127.0.0.1", machine_id=f"machine-{name}", cpus=4)
    return Hello(
        name,
        f"agent-{name}",
        f"boot-{name}",
        "0",
        NodeObservations(inventory),
        protocol_max=PROTOCOL_MAX,
    )


if __name__ == "__main__":
    crowd = Crowd(
        int(sys.argv[1]), sys.argv[2], os.environ["TOKEN"], sys.argv[3], logs=sys.argv[4] == "logs"
    )
    asyncio.run(crowd.run())
