"""The control link: one websocket at a time, dialled by us, read always.

It decides nothing: frames become inputs, reports become frames, and a peer that cannot be
understood is hung up on.
"""

from __future__ import annotations

import asyncio
from typing import Final, Never

import aiohttp
import msgspec
import structlog

from agent.core.inputs import CommandReceived, LinkDown, LinkUp
from agent.link.dialer import ConnectionLostError, Dialer, Websocket, stay_connected
from agent.link.inbox import Inbox
from muster.protocol.codec import (
    COMMAND_BYTES_MAX,
    ProtocolError,
    ReportFrame,
    UnknownMessage,
    decode_command,
    encode,
)
from muster.protocol.control_channel import (
    Command,
    HeartbeatAck,
    Refused,
    Report,
    TaskReport,
    Welcome,
)
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.sequencing import Link
from muster.protocol.states import TaskState

PATH: Final = "/v1/agent"
# Reports are whole, so nothing is gained by storing many for a peer that does not take them.
_OUTBOX_FRAMES: Final = 4096

_log = structlog.get_logger("agent.link.control")


class _Connection:
    """One websocket and its counters. `ending` is set once, to why it is of no more use."""

    def __init__(self, websocket: Websocket) -> None:
        self.websocket = websocket
        self.link = Link()
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue(_OUTBOX_FRAMES)
        self.ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.welcomed = False
        self.refused = False
        self.met_unknown = False  # which is told once
        # What the peer was last told of each task: much happens on a node that is no news to it.
        self.told: dict[TaskId, TaskReport] = {}

    def end(self, why: str) -> None:
        if not self.ending.done():
            self.ending.set_result(why)

    def send(self, report: Report) -> None:
        if self.ending.done() or not self._is_news(report):
            return
        try:
            self.outbox.put_nowait(encode(ReportFrame(self.link.next_seq(), report)))
        except asyncio.QueueFull:
            self.end(f"the coordinator has not taken {_OUTBOX_FRAMES} reports")
        except ProtocolError as error:
            self.end(f"a report could not be sent: {error}")

    def _is_news(self, report: Report) -> bool:
        """False for what the peer has heard on this connection already; its clock is no news."""
        if not isinstance(report, TaskReport):
            return True
        if report.state is TaskState.CLEANED:
            # The last word of a task answers every question, even one asked twice.
            self.told.pop(report.task, None)
            return True
        still = msgspec.structs.replace(report, running_s=0.0)
        # That a task was taken in hand is no news to who ordered it.
        if self.told.get(report.task, TaskReport(report.task, TaskState.ASSIGNED)) == still:
            return False
        self.told[report.task] = still
        return True


class ControlLink:
    """Keeps a connection to the coordinator; the owner of the state sends and closes."""

    def __init__(self, dialer: Dialer, inbox: Inbox) -> None:
        self._dialer = dialer
        self._inbox = inbox
        self._connection: _Connection | None = None

    async def run(self) -> Never:
        """Dial, speak, dial again; ends only when cancelled."""
        await stay_connected(self._dialer, PATH, COMMAND_BYTES_MAX, self._converse)

    def send(self, report: Report) -> None:
        """On the connection that is open; where there is none it is dropped."""
        if self._connection is not None:
            self._connection.send(report)

    def close(self, why: str, *, refused: bool) -> None:
        """Hang up; after a refusal the next dial is half a minute away."""
        if self._connection is not None:
            self._connection.refused |= refused
            self._connection.end(why)

    async def _converse(self, websocket: Websocket) -> str:
        connection = self._connection = _Connection(websocket)
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection), name="agent.link.control.read")
        writer = loop.create_task(_write(connection), name="agent.link.control.write")
        self._inbox.post(LinkUp())
        try:
            await asyncio.wait(
                (connection.ending, reader, writer), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            connection.end("the agent stops")
            reader.cancel()
            writer.cancel()
            ends = await asyncio.gather(reader, writer, return_exceptions=True)
            self._inbox.post(LinkDown())
        for end in ends:
            if isinstance(end, Exception):
                raise end
        why = connection.ending.result()
        # What the owner says in answer to this connection must not be heard on the next one.
        await self._inbox.settled()
        self._connection = None
        if not connection.welcomed or connection.refused:
            raise ConnectionLostError(why, refused=connection.refused)
        return why

    async def _read(self, connection: _Connection) -> None:
        """Until the connection ends: without a reader, pings would go unanswered."""
        try:
            async for message in connection.websocket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise ProtocolError(f"a {message.type.name} frame on the control link")
                await self._take(connection, message.data)
        except ProtocolError as error:
            _log.warning("peer_not_understood", why=str(error))
            connection.end(f"the coordinator was not understood: {error}")
            return
        except (aiohttp.ClientError, OSError) as error:
            connection.end(f"the connection failed: {error}")
            return
        code = connection.websocket.close_code
        connection.end(f"the coordinator closed the connection ({code})")

    async def _take(self, connection: _Connection, data: str) -> None:
        try:
            frame = decode_command(data)
        except UnknownMessage as unknown:
            connection.link.accept(unknown.seq)
            if not connection.met_unknown:
                connection.met_unknown = True
                _log.info("message_ignored", why=str(unknown))
            return
        _check_task(frame.body)
        if connection.ending.done() or not connection.link.accept(frame.seq):
            return
        if isinstance(frame.body, Welcome):
            connection.welcomed = True
        elif isinstance(frame.body, Refused):
            connection.refused = not frame.body.soon
        self._inbox.post(CommandReceived(frame.body))
        await self._inbox.room()


def _check_task(command: Command) -> None:
    """A task's id becomes the name of a folder. Raises ProtocolError."""
    match command:
        case Welcome() | Refused() | HeartbeatAck():
            return
        case _:
            try:
                parse_task_id(command.task)
            except BadId as error:
                raise ProtocolError(str(error)) from error


async def _write(connection: _Connection) -> None:
    try:
        while True:
            data = await connection.outbox.get()
            await connection.websocket.send_frame(data, aiohttp.WSMsgType.TEXT)
    except (aiohttp.ClientError, OSError) as error:
        connection.end(f"the connection failed: {error}")
