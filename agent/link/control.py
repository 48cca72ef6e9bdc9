"""The control link: one websocket at a time, dialed by the agent.

It decides nothing: frames become inputs, and reports become frames. A frame that it cannot parse
closes the connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Never

import aiohttp
import msgspec
import structlog

from agent.core.inputs import CommandReceived, LinkDown, LinkUp
from agent.link.dialer import ConnectionLostError, Dialer, Websocket, stay_connected
from agent.link.inbox import InputQueue
from muster.protocol.ids import BadId, TaskId, parse_task_id
from muster.protocol.link.codec import (
    COMMAND_BYTES_MAX,
    ProtocolError,
    ReportFrame,
    UnknownMessage,
    decode_command,
    encode,
)
from muster.protocol.link.control_channel import (
    Command,
    HeartbeatAck,
    Refused,
    Report,
    TaskReport,
    Welcome,
)
from muster.protocol.link.given import GiveSettings, GiveUsers
from muster.protocol.link.sequencing import Link
from muster.protocol.states import TaskState

PATH: Final = "/v1/agent"
# Because reports are complete states, storing many of them for a slow peer is useless.
_OUTBOX_FRAMES: Final = 4096

_log = structlog.get_logger("agent.link.control")


class _Connection:
    """A websocket and its counters. `ending` is set once, to the reason for its end."""

    def __init__(self, websocket: Websocket) -> None:
        self.websocket = websocket
        self.link = Link()
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue(_OUTBOX_FRAMES)
        self.ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.welcomed = False
        self.refused = False
        self.met_unknown = False  # logged once
        # Last report sent for each task: many local changes do not alter the report.
        self.reported: dict[TaskId, TaskReport] = {}

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
        """True if the report differs from the last one sent on this connection, except for the
        clock.
        """
        if not isinstance(report, TaskReport):
            return True
        if report.state is TaskState.CLEANED:
            # The final report of a task answers every request, even a repeated one.
            self.reported.pop(report.task, None)
            return True
        still = msgspec.structs.replace(report, running_s=0.0)
        # The coordinator has assigned the task, so ASSIGNED is not new to it.
        if self.reported.get(report.task, TaskReport(report.task, TaskState.ASSIGNED)) == still:
            return False
        self.reported[report.task] = still
        return True


class ControlLink:
    """Keeps a connection to the coordinator. The owner of the state sends and closes."""

    def __init__(self, dialer: Dialer, inbox: InputQueue) -> None:
        self._dialer = dialer
        self._inbox = inbox
        self._connection: _Connection | None = None

    async def run(self) -> Never:
        """Dial and converse, again and again. Ends only when cancelled."""
        await stay_connected(self._dialer, PATH, COMMAND_BYTES_MAX, self._converse)

    def send(self, report: Report) -> None:
        """Send a report on the open connection; drop it if there is none."""
        if self._connection is not None:
            self._connection.send(report)

    def close(self, why: str, *, refused: bool) -> None:
        """Close the connection. After a refusal, the next dial is half a minute away."""
        if self._connection is not None:
            self._connection.refused |= refused
            self._connection.end(why)

    def connect_again(self) -> None:
        """Close the connection and dial at once, with the certificate that is on disk now."""
        self.close("this node's certificate was renewed", refused=False)

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
        # The owner's answers to this connection must not go out on the next one.
        await self._inbox.settled()
        self._connection = None
        if not connection.welcomed or connection.refused:
            raise ConnectionLostError(why, refused=connection.refused)
        return why

    async def _read(self, connection: _Connection) -> None:
        """Read until the connection ends. Without a reader, pings would go unanswered."""
        try:
            async for message in connection.websocket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise ProtocolError(f"a {message.type.name} frame on the control link")
                await self._take(connection, message.data)
        except ProtocolError as error:
            _log.warning("peer_not_understood", why=str(error))
            connection.end(f"the coordinator's message was not understood: {error}")
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
    """Validate the task id, because it becomes a directory name. Raises ProtocolError."""
    match command:
        case Welcome() | Refused() | HeartbeatAck() | GiveSettings() | GiveUsers():
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
