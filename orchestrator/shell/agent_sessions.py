"""Control connections of agents: frames become inputs, commands become frames.

A session has one reader (its request handler) and one writer with a bounded outbox, so that an
agent that does not read slows nobody. Such an agent is disconnected, and reports its full state
when it reconnects.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec.structs import replace

from muster.daemon.listen_address import is_loopback
from muster.daemon.task_owner import TaskOwner
from muster.daemon.tls import drop_connection, peer_fingerprint
from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.codec import (
    FRAME_BYTES_MAX,
    CommandFrame,
    FrameTooLarge,
    ProtocolError,
    UnknownMessage,
    decode_report,
    encode,
)
from muster.protocol.link.control_channel import (
    ArrangeTask,
    Command,
    Hello,
    PrepareTask,
    Refusal,
    Refused,
    TaskReport,
)
from muster.protocol.link.sequencing import Link
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core.facts.inputs import HelloReceived, ReportReceived, SessionEnded
from orchestrator.core.nodes.enrolment import refusal_of
from orchestrator.core.rights.link import node_may_send
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.frame_budget import FrameBudget, LineBudget, ReportPace

HELLO_TIMEOUT_S: Final = 5.0
OUTBOX_MAX: Final = 1 << 16
"""Commands that wait for one agent. The answer to a hello alone has one for each of its tasks."""
WRITE_TIMEOUT_S: Final = 30.0
NODE: Final = web.RequestKey("node", NodeName)
"""Node of an open control connection."""
_CLOSE_TIMEOUT_S: Final = 0.5
_REASON_BYTES_MAX: Final = 120

_log = structlog.get_logger("muster.agents")


@dataclass(frozen=True, slots=True)
class _Close:
    """The last item of an outbox; items before it are still sent."""

    why: str
    code: int = WSCloseCode.POLICY_VIOLATION


@dataclass(slots=True)
class _Session:
    id: SessionId
    socket: web.WebSocketResponse
    request: web.Request
    log: structlog.stdlib.BoundLogger  # bound to the session
    link: Link = field(default_factory=Link)
    budget: FrameBudget = field(default_factory=FrameBudget)
    pace: ReportPace = field(default_factory=ReportPace)
    outbox: asyncio.Queue[Command | _Close] = field(
        default_factory=lambda: asyncio.Queue(OUTBOX_MAX)
    )
    closing: bool = False
    met_unknown: bool = False  # unknown messages are logged once

    def abort(self) -> None:
        """Drop the connection without a closing handshake."""
        self.closing = True
        drop_connection(self.request.transport)


class AgentSessions:
    """All control connections by session. The coordinator uses its `Sessions` part."""

    def __init__(
        self,
        owner: TaskOwner,
        *,
        message_bytes_max: int,
        agents_max: int,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        ticket: Callable[[str, str], str] = lambda _task, _bundle: "",
    ) -> None:
        """An agent that has not accepted one message within `write_timeout_s` is cut off. `ticket`
        makes the ticket of a task for a bundle."""
        self._ticket = ticket
        self._owner = owner
        self._write_timeout_s = write_timeout_s
        self._message_bytes_max = min(message_bytes_max, FRAME_BYTES_MAX)
        self._agents_max = agents_max
        self._sessions: dict[SessionId, _Session] = {}
        self._next = 1
        self._stopping = False
        self._lines = LineBudget()
        self.coordinator: Coordinator | None = None
        self.received_bytes = self.sent_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def send(self, session: SessionId, command: Command) -> None:
        self._put(session, command)

    def refuse(self, session: SessionId, refused: Refused) -> None:
        if (found := self._sessions.get(session)) is not None:
            self._warn(found, "agent_refused", code=refused.code, why=refused.text)
        self._put(session, refused)
        self._put(session, _Close(refused.code))

    def _warn(self, session: _Session, event: str, **fields: str) -> None:
        left_out = self._lines.take(time.monotonic())
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            session.log.warning(event, **fields, **more)

    def close(self, session: SessionId, why: str) -> None:
        if (found := self._sessions.get(session)) is not None:
            found.log.info("agent_connection_closed", why=why)
        self._put(session, _Close(why))

    def close_all(self) -> None:
        """Notify every agent that this process is stopping; the tasks keep running."""
        self._stopping = True
        for session in list(self._sessions):
            self._put(session, _Close("the coordinator is restarting", WSCloseCode.GOING_AWAY))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle an agent's control connection, from its Hello to its end. A request that opens
        none asks whether this coordinator refuses the agent, as a node's `doctor` does.
        """
        assert self.coordinator is not None
        certificate = peer_fingerprint(request.transport)
        why = (
            "" if "Upgrade" in request.headers else refusal_of(self.coordinator.state, certificate)
        )
        if why:
            raise web.HTTPConflict(reason=" ".join(why.split()))
        socket = web.WebSocketResponse(
            compress=False,
            max_msg_size=self._message_bytes_max,
            timeout=_CLOSE_TIMEOUT_S,
            decode_text=False,
            autoping=False,
        )
        await socket.prepare(request)
        peer = request.remote or ""
        log = _log.bind(session=self._next, peer=peer)
        session = _Session(SessionId(self._next), socket, request, log)
        self._next += 1
        full = len(self._sessions) >= self._agents_max
        if full or self._stopping:
            why = f"{self._agents_max} agents are connected, the limit" if full else "restarting"
            await _close(socket, _Close(why, WSCloseCode.TRY_AGAIN_LATER))
            return socket
        self._sessions[session.id] = session
        writer = self._owner.spawn(self._write(session), name=f"session-{session.id}")
        said_hello = False
        try:
            hello = await _hello(session)
            said_hello = True
            session.log = log.bind(node=hello.node)
            request[NODE] = hello.node
            local = is_local(request, peer)
            await self.coordinator.put(HelloReceived(session.id, hello, peer, local, certificate))
            await self._read(session, self.coordinator)
        except ProtocolError as error:
            self._warn(session, "agent_protocol_error", why=str(error))
            self._put(session.id, _Close(str(error)))
        finally:
            del self._sessions[session.id]
            if said_hello:
                self.coordinator.put_now(SessionEnded(session.id))
            if session.closing:
                # A close frame with the reason is still being sent.
                await asyncio.wait([writer], timeout=_CLOSE_TIMEOUT_S)
            writer.cancel()
            session.abort()
        return socket

    async def _read(self, session: _Session, coordinator: Coordinator) -> None:
        while (data := await _frame(session)) is not None:
            self.received_bytes += len(data)
            try:
                frame = decode_report(data)
            except UnknownMessage as unknown:
                session.budget.take(asyncio.get_running_loop().time())
                session.link.accept(unknown.seq)
                if not session.met_unknown:
                    session.met_unknown = True
                    session.log.info("message_ignored", why=str(unknown))
                continue
            if not session.link.accept(frame.seq):
                continue
            report = frame.body
            if isinstance(report, Hello):
                raise ProtocolError("a second hello on the same connection")
            if not node_may_send(type(report)):
                raise ProtocolError(f"a node may not send {type(report).__name__}")
            if pause_s := session.pace.take(asyncio.get_running_loop().time()):
                await asyncio.sleep(pause_s)
            await coordinator.put(ReportReceived(session.id, report))

    async def _write(self, session: _Session) -> None:
        while True:
            item = await session.outbox.get()
            if isinstance(item, _Close):
                await _close(session.socket, item)
                return
            if isinstance(item, PrepareTask) and item.bundle is not None:
                # Only the node that has to prepare the task receives its ticket.
                item = replace(item, ticket=self._ticket(item.task, item.bundle))
            try:
                data = encode(CommandFrame(session.link.sent + 1, item))
            except FrameTooLarge as error:
                session.log.error("command_too_large", why=str(error))
                if not isinstance(item, PrepareTask | ArrangeTask):
                    session.abort()
                    return
                await self._unsayable(session, item, str(error))
                continue
            session.link.next_seq()
            self.sent_bytes += len(data)
            try:
                async with asyncio.timeout(self._write_timeout_s):
                    await session.socket.send_frame(data, WSMsgType.TEXT)
            except TimeoutError:
                session.log.warning("agent_does_not_read", waiting=session.outbox.qsize())
                session.abort()
                return
            except ConnectionError:
                session.abort()  # the reader sees the disconnect as well
                return

    async def _unsayable(
        self, session: _Session, command: PrepareTask | ArrangeTask, why: str
    ) -> None:
        """Fail a task whose command exceeds the frame limit. Sending it again would not help."""
        assert self.coordinator is not None
        state = TaskState.ASSIGNED if isinstance(command, PrepareTask) else TaskState.PREPARED
        text = f"its command is {why}; make the job's environment or command smaller"
        refused = TaskReport(command.task, state, refusal=Refusal(RefusalCode.TOO_LARGE, text))
        await self.coordinator.put(ReportReceived(session.id, refused))

    def _put(self, name: SessionId, item: Command | _Close) -> None:
        session = self._sessions.get(name)
        if session is None or session.closing:
            return
        if isinstance(item, _Close):
            session.closing = True
        try:
            session.outbox.put_nowait(item)
        except asyncio.QueueFull:
            session.log.warning("agent_does_not_read", waiting=session.outbox.qsize())
            session.abort()


def is_local(request: web.Request, peer: str) -> bool:
    """True if the agent runs on this machine: both ends of its connection have the same address."""
    own = None if request.transport is None else request.transport.get_extra_info("sockname")
    return is_loopback(peer) or (own is not None and peer == own[0])


async def _hello(session: _Session) -> Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            data = await _frame(session)
    except TimeoutError:
        raise ProtocolError(f"no hello within {HELLO_TIMEOUT_S:g} s") from None
    if data is None:
        raise ProtocolError("the connection ended before its hello")
    frame = decode_report(data)
    session.link.accept(frame.seq)
    if not isinstance(frame.body, Hello):
        raise ProtocolError("the first message is not a hello")
    return frame.body


async def _frame(session: _Session) -> bytes | None:
    """Return the next text frame, or None if the connection has ended. Raises ProtocolError."""
    try:
        message = await session.budget.receive(session.socket)
    except ConnectionError:
        return None
    match message.type:
        case WSMsgType.TEXT:
            data: bytes = message.data
            return data
        case WSMsgType.CLOSE | WSMsgType.CLOSING | WSMsgType.CLOSED:
            return None
        case WSMsgType.ERROR:
            raise ProtocolError(f"not a supported websocket frame: {message.data}")
        case _:
            raise ProtocolError(f"a frame of type {message.type.name}; messages are text frames")


async def _close(socket: web.WebSocketResponse, close: _Close) -> None:
    try:
        reason = close.why.encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()
        await socket.close(code=close.code, message=reason)
    except ConnectionError:
        return
