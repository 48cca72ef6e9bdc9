"""An agent that does not read slows no other: its connection is closed and logged once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import SessionId, TaskId
from muster.protocol.link.codec import COMMAND_BYTES_MAX, ReportFrame, decode_command, encode
from muster.protocol.link.control_channel import ArrangeTask, ForgetTask, PrepareTask, TaskReport
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core.facts.inputs import HelloReceived, Input, ReportReceived, SessionEnded
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.frame_budget import AT_ONCE
from tests.orchestrator.fake_agent import DEADLINE_S, hello


class Heard:
    """Stands in for the owner and keeps every input."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.more = asyncio.Event()

    def put_now(self, received: Input) -> None:
        self.inputs.append(received)
        self.more.set()

    async def put(self, received: Input) -> None:
        self.put_now(received)

    async def until(self, kind: type[Any]) -> None:
        while not any(isinstance(received, kind) for received in self.inputs):
            self.more.clear()
            await self.more.wait()


def big(number: int) -> PrepareTask:
    env = {"X": "x" * 64 * 1024}
    return PrepareTask(TaskId(f"{number}.1.0"), "none", None, None, (), env, timeout_s=1.0)


@asynccontextmanager
async def sessions(heard: Heard, **more: Any) -> AsyncIterator[tuple[AgentSessions, str]]:
    """Connections of agents, and where they are to be made."""
    async with asyncio.timeout(DEADLINE_S), TaskOwner("test") as owner:
        agents = AgentSessions(owner, message_bytes_max=1 << 20, agents_max=10, **more)
        agents.coordinator = cast(Coordinator, heard)
        app = web.Application()
        app.router.add_get("/", agents.serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield agents, f"http://{host}:{port}/"
        await runner.cleanup()


async def test_an_agent_that_does_not_read_is_cut_off() -> None:
    heard = Heard()
    async with (
        sessions(heard, write_timeout_s=0.5) as (agents, url),
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as socket,
    ):
        await socket.send_str(encode(ReportFrame(1, hello("n1"))).decode())
        await heard.until(HelloReceived)
        for number in range(1, 1024):
            agents.send(SessionId(1), big(number))
        await heard.until(SessionEnded)
        assert len(agents) == 0
        agents.send(SessionId(1), big(1))
    assert heard.inputs[1:] == [SessionEnded(SessionId(1))]


async def test_an_agent_that_reads_gets_all_that_one_turn_sends_it() -> None:
    """A node may have thousands of ended tasks whose logs wait: all are forgotten at once."""
    count = 5000
    heard = Heard()
    async with (
        sessions(heard) as (agents, url),
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as socket,
    ):
        await socket.send_str(encode(ReportFrame(1, hello("n1"))).decode())
        await heard.until(HelloReceived)
        for number in range(1, count + 1):
            agents.send(SessionId(1), ForgetTask(TaskId(f"{number}.1.0")))
        for number in range(1, count + 1):
            assert decode_command(await socket.receive_str()).seq == number


async def test_a_command_that_fits_no_frame_is_a_refusal_and_the_connection_goes_on() -> None:
    """Cut off, the agent would come back and be owed the same."""
    small = big(2)
    large = replace(small, task=TaskId("1.1.0"), env={"X": "x" * COMMAND_BYTES_MAX})
    arrange = ArrangeTask(TaskId("3.1.1"), (), large.env, (), "")
    heard = Heard()
    async with (
        sessions(heard) as (agents, url),
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as socket,
    ):
        await socket.send_str(encode(ReportFrame(1, hello("n1"))).decode())
        await heard.until(HelloReceived)
        for command in (large, arrange, small):
            agents.send(SessionId(1), command)
        frame = decode_command(await socket.receive_str())
        assert (frame.seq, frame.body) == (1, small)
    reports = [s.report for s in heard.inputs if isinstance(s, ReportReceived)]
    task_reports = [report for report in reports if isinstance(report, TaskReport)]
    assert [(r.task, r.state, r.refusal and r.refusal.code) for r in task_reports] == [
        (large.task, TaskState.ASSIGNED, RefusalCode.TOO_LARGE),
        (arrange.task, TaskState.PREPARED, RefusalCode.TOO_LARGE),
    ]


@pytest.mark.parametrize("kind", ["ping", "pong", "unknown"])
async def test_an_agent_that_floods_pings_or_unknown_messages_is_cut_off(kind: str) -> None:
    """They are too small for a limit of bytes."""
    heard = Heard()
    async with (
        sessions(heard) as (agents, url),
        aiohttp.ClientSession() as session,
        session.ws_connect(url, autoping=False) as socket,
    ):
        await socket.send_str(encode(ReportFrame(1, hello("n1"))).decode())
        await heard.until(HelloReceived)
        with contextlib.suppress(ConnectionError):
            for number in range(2, 2 * AT_ONCE):
                if kind == "unknown":
                    later = {"seq": number, "body": {"type": "later"}}
                    await socket.send_str(json.dumps(later))
                else:
                    await getattr(socket, kind)()
        await heard.until(SessionEnded)
        assert len(agents) == 0
