"""A thousand agents in one process, for storms: real sockets, the agent's own way of dialling and
of coming back, and a task each that they say they have.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from agent.link.control import PATH
from agent.link.dialer import ConnectionLostError, Dialer, Websocket, stay_connected
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import COMMAND_BYTES_MAX, ReportFrame, decode_command, encode
from muster.protocol.link.control_channel import (
    ArrangeTask,
    ForgetTask,
    Heartbeat,
    PrepareTask,
    RankReport,
    Report,
    StartTask,
    StopTask,
    TaskReport,
    Welcome,
)
from muster.protocol.link.sequencing import Link
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import hello, prepared

PATIENCE_S = 180.0
_BEGUN = frozenset({TaskState.STARTED, TaskState.CLEANED})


@dataclass
class Member:
    """A simulated agent and its tasks."""

    name: NodeName
    task: TaskReport | None = None
    forgotten: int = 0
    welcomes: int = 0
    link: Link = field(default_factory=Link)

    @property
    def runs(self) -> bool:
        """True if its task has begun."""
        return self.task is not None and self.task.state is TaskState.STARTED

    async def converse(self, websocket: Websocket) -> str:
        self.link = Link()
        tasks = () if self.task is None else (self.task,)
        await self._say(websocket, hello(self.name, tasks=tasks))
        beat: asyncio.Task[None] | None = None
        welcomed = False
        try:
            async for message in websocket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                frame = decode_command(message.data)
                assert self.link.accept(frame.seq)
                if isinstance(frame.body, Welcome):
                    welcomed = True
                    self.welcomes += 1
                    beat = asyncio.create_task(self._beat(websocket, frame.body.heartbeat_s))
                else:
                    await self._obey(websocket, frame.body)
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLostError(str(error)) from error
        finally:
            if beat is not None:
                beat.cancel()
        if not welcomed:
            raise ConnectionLostError("not welcomed")
        return "cut"

    async def _obey(self, websocket: Websocket, command: object) -> None:
        match command:
            case PrepareTask(task):
                await self._become(websocket, task, TaskState.PREPARED)
            case ArrangeTask(task, start=start):
                state = TaskState.STARTED if start else TaskState.ARRANGED
                await self._become(websocket, task, state)
            case StartTask(task):
                await self._become(websocket, task, TaskState.STARTED)
            case StopTask(task):
                await self._become(websocket, task, TaskState.CLEANED)
            case ForgetTask(task) if self.task is not None and self.task.task == task:
                self.task = None
                self.forgotten += 1
            case _:
                pass

    async def _become(self, websocket: Websocket, task: TaskId, state: TaskState) -> None:
        ended = ExitStatus(signal=15) if state is TaskState.CLEANED else None
        rank = int(task.rpartition(".")[2])
        self.task = TaskReport(
            task,
            state,
            prepared=prepared(),
            listening=state is not TaskState.PREPARED,
            ranks=(RankReport(rank, pid=1, exit=ended),) if state in _BEGUN else (),
            exit=ended,
            stopped_by="" if ended is None else "stop",
        )
        await self._say(websocket, self.task)

    async def _beat(self, websocket: Websocket, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._say(websocket, Heartbeat(time.monotonic()))

    async def _say(self, websocket: Websocket, report: Report) -> None:
        frame = encode(ReportFrame(self.link.next_seq(), report))
        await websocket.send_frame(frame, aiohttp.WSMsgType.TEXT)


class Crowd:
    """All of them, in a thread of their own. Use it as a context."""

    def __init__(self, number: int, url: str, token_file: Path) -> None:
        self.members = [Member(NodeName(f"n{n:04d}")) for n in range(number)]
        self._url, self._token_file = url, token_file
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(PATIENCE_S)
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._stay())
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._loop.close()

    async def _stay(self) -> None:
        self._task = asyncio.current_task()
        async with Dialer(self._url, self._token_file, None) as dialer, asyncio.TaskGroup() as all_:
            for member in self.members:
                all_.create_task(stay_connected(dialer, PATH, COMMAND_BYTES_MAX, member.converse))

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
