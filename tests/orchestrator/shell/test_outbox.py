"""An agent that does not read slows nobody: its connection is ended, and its end is told once."""

import asyncio
from typing import Any, cast

import aiohttp
from aiohttp import web

from muster.daemon.tasks import TaskOwner
from muster.protocol.codec import ReportFrame, encode
from muster.protocol.ids import SessionId, TaskId
from muster.protocol.messages import PrepareTask
from orchestrator.core.stimuli import HelloReceived, SessionEnded, Stimulus
from orchestrator.shell.agents import OUTBOX_MAX, AgentSessions
from orchestrator.shell.coordinator import Coordinator
from tests.orchestrator.fake_agent import DEADLINE_S, hello


class Heard:
    """Stands where the owner does, and keeps what it is told."""

    def __init__(self) -> None:
        self.stimuli: list[Stimulus] = []
        self.more = asyncio.Event()

    def put_now(self, stimulus: Stimulus) -> None:
        self.stimuli.append(stimulus)
        self.more.set()

    async def put(self, stimulus: Stimulus) -> None:
        self.put_now(stimulus)

    async def until(self, kind: type[Any]) -> None:
        while not any(isinstance(stimulus, kind) for stimulus in self.stimuli):
            self.more.clear()
            await self.more.wait()


def big(number: int) -> PrepareTask:
    env = {"X": "x" * 64 * 1024}
    return PrepareTask(TaskId(f"{number}.1.0"), "none", None, None, (), env, timeout_s=1.0)


def test_who_does_not_read_is_cut_off() -> None:
    async def main() -> None:
        heard = Heard()
        async with asyncio.timeout(DEADLINE_S), TaskOwner("test") as owner:
            agents = AgentSessions(owner, message_bytes_max=1 << 20, agents_max=10)
            agents.coordinator = cast(Coordinator, heard)
            app = web.Application()
            app.router.add_get("/", agents.serve)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"http://{host}:{port}/") as socket,
            ):
                await socket.send_str(encode(ReportFrame(1, hello("n1"))).decode())
                await heard.until(HelloReceived)
                for number in range(1, 2 * OUTBOX_MAX):
                    agents.send(SessionId(1), big(number))
                await heard.until(SessionEnded)
                assert len(agents) == 0
                agents.send(SessionId(1), big(1))
            await runner.cleanup()
        assert heard.stimuli[1:] == [SessionEnded(SessionId(1))]

    asyncio.run(main())
