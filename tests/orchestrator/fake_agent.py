"""An agent by hand: a real websocket, and the reports that a test wants to make."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import ReportFrame, decode_command, encode
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ArrangeTask,
    Command,
    ForgetTask,
    Hello,
    Inventory,
    NodeObservations,
    Prepared,
    PrepareTask,
    RankReport,
    Report,
    StartTask,
    StopTask,
    TaskReport,
    Welcome,
)
from muster.protocol.link.log_channel import (
    Chunk,
    LogCommand,
    LogHello,
    LogReport,
    StreamId,
    decode_log_command,
    encode_chunk,
    encode_text,
)
from muster.protocol.link.sequencing import Link
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.orchestrator.process import CoordinatorProcess

T = TypeVar("T")
DEADLINE_S = 180.0
GOOD = ExitStatus(code=0)


class FakeAgent:
    """The control connection of one node."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, name: str) -> None:
        self.socket = socket
        self.name = NodeName(name)
        self.link = Link()
        self.released: set[TaskId] = set()

    async def say(self, report: Report) -> None:
        await self.socket.send_str(encode(ReportFrame(self.link.next_seq(), report)).decode())

    async def hear(self) -> Command:
        async with asyncio.timeout(DEADLINE_S):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        frame = decode_command(message.data)
        assert self.link.accept(frame.seq)
        return frame.body

    async def expect(self, kind: type[T]) -> T:
        command = await self.hear()
        assert isinstance(command, kind), command
        return command

    async def hello(self, **fields: Any) -> Welcome:
        await self.say(hello(self.name, **fields))
        return await self.expect(Welcome)

    async def report(self, task: TaskId, state: TaskState, **fields: Any) -> None:
        await self.say(TaskReport(task, state, **fields))

    async def prepare(self) -> TaskId:
        """Take the order to prepare a task, and carry it out."""
        task = (await self.expect(PrepareTask)).task
        await self.report(task, TaskState.PREPARED, prepared=prepared())
        return task

    async def arrange(self, task: TaskId) -> ArrangeTask:
        order = await self.expect(ArrangeTask)
        assert order.task == task
        if order.start:
            self.released.add(task)
        else:
            await self.report(task, TaskState.ARRANGED, prepared=prepared())
        return order

    async def gate(self, task: TaskId) -> None:
        """Wait until the gate may open, which the plan of a gang of one has said."""
        if task not in self.released:
            assert (await self.expect(StartTask)).task == task

    async def finish(self, task: TaskId, status: ExitStatus = GOOD) -> None:
        """Open the gate, run, and end with `status`; up to the coordinator's ForgetTask."""
        await self.gate(task)
        ranks = (RankReport(int(task.rpartition(".")[2]), exit=status),)
        await self.report(task, TaskState.STARTED, prepared=prepared(), listening=True)
        await self.report(
            task,
            TaskState.CLEANED,
            prepared=prepared(),
            listening=True,
            exit=status,
            ranks=ranks,
            first_failed=None if status.ok else ranks[0].rank,
        )
        while isinstance(command := await self.hear(), StartTask | StopTask):
            pass  # said again, or to a gang whose rank failed
        assert command == ForgetTask(task), command


class FakeLogLink:
    """The bulk connection of one node."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, message: LogReport) -> None:
        await self.socket.send_str(encode_text(message))

    async def send(self, stream: StreamId, offset: int, data: bytes, ts: float = 1.0) -> None:
        await self.socket.send_bytes(encode_chunk(Chunk(stream, offset, ts), data))

    async def hear(self) -> LogCommand:
        async with asyncio.timeout(DEADLINE_S):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return decode_log_command(message.data)

    async def hear_until(self, command: LogCommand) -> list[LogCommand]:
        """Everything up to and with `command`."""
        heard = [await self.hear()]
        while heard[-1] != command:
            heard.append(await self.hear())
        return heard


def hello(name: str, inventory: Inventory | None = None, **fields: Any) -> Hello:
    if inventory is None:
        inventory = Inventory(address="127.0.0.1", machine_id=f"machine-{name}", cpus=4, git=True)
    values: dict[str, Any] = {
        "node": NodeName(name),
        "agent_id": f"agent-{name}",
        "boot_id": f"boot-{name}",
        "version": "0.1.0",
        "observed": NodeObservations(inventory),
        "protocol_max": PROTOCOL_MAX,
        **fields,
    }
    return Hello(**values)


def prepared() -> Prepared:
    return Prepared(
        address="127.0.0.1",
        ports=(20001, 20002),
        gpus=0,
        log_dir="/run/log",
        workdir="/run/work",
        scratch="/run/scratch",
        output="/run/output",
        hostfile="/run/hostfile",
    )


@asynccontextmanager
async def connect(coordinator: CoordinatorProcess, name: str) -> AsyncIterator[FakeAgent]:
    """A control connection that has not said its hello yet."""
    async with (
        aiohttp.ClientSession(headers=coordinator.headers(coordinator.join)) as session,
        session.ws_connect(f"{coordinator.url}/v1/agent") as socket,
    ):
        yield FakeAgent(socket, name)


@asynccontextmanager
async def connect_logs(coordinator: CoordinatorProcess, name: str) -> AsyncIterator[FakeLogLink]:
    """A bulk connection that has said its hello."""
    async with (
        aiohttp.ClientSession(headers=coordinator.headers(coordinator.join)) as session,
        session.ws_connect(f"{coordinator.url}/v1/agent/logs") as socket,
    ):
        link = FakeLogLink(socket)
        await link.say(LogHello(NodeName(name), f"agent-{name}"))
        yield link
