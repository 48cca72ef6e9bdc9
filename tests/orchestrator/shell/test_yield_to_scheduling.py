"""Bytes of logs are many and may wait: decisions on jobs go before them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from muster.daemon.clock import SystemClock
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import JobId, TaskId
from muster.protocol.link.log_channel import LogAck, LogHello, StreamId, StreamKind
from orchestrator.api.log_stream import LogReader, Selection
from orchestrator.shell import coordinator as coordinator_module
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.logs.ingest import MUCH_BYTES, LogIngest
from orchestrator.shell.logs.store import LogStore
from tests.orchestrator.fake_agent import FakeLogLink
from tests.orchestrator.shell.owner import HELLO, Rig, with_owner

OUT = StreamId(TaskId("1.1.0"), StreamKind.STDOUT, 0)
ERR = StreamId(TaskId("1.1.0"), StreamKind.STDERR, 0)
MUCH = b"x" * MUCH_BYTES


@dataclass
class Logs:
    """Log requests of the one job, from its node and from a reader."""

    rig: Rig
    store: LogStore
    http: aiohttp.ClientSession
    opened: AsyncExitStack

    async def link(self) -> FakeLogLink:
        socket = await self.opened.enter_async_context(self.http.ws_connect("/agent"))
        link = FakeLogLink(socket)
        await link.say(LogHello(HELLO.node, HELLO.agent_id))
        return link

    async def read(self, kind: str) -> bytes:
        async with self.http.get("/read", params={"kind": kind}) as answer:
            return await answer.read()


def with_logs(tmp_path: Path, main: Callable[[Logs], Awaitable[None]]) -> None:
    async def play(rig: Rig) -> None:
        await rig.join()
        await rig.submit()
        owner, reads = TaskOwner("test"), BulkReads()
        store = LogStore(tmp_path / "logs", rig.coordinator.changes, SystemClock())
        owner.spawn(store.run(), name="sync")
        links = LogIngest(owner, store, rig.coordinator, connections_max=4)

        async def read(request: web.Request) -> web.StreamResponse:
            chosen = Selection(None, None, frozenset({request.query["kind"]}), None)
            job = rig.coordinator.state.jobs[JobId(1)]
            reader = LogReader(rig.coordinator, store, reads, "ann", job, chosen, as_text=True)
            response = web.StreamResponse()
            await response.prepare(request)
            await reader.stream(request, response, None, None, follow=False)
            return response

        app = web.Application()
        app.router.add_get("/agent", links.serve)
        app.router.add_get("/read", read)
        async with TestServer(app) as server:
            async with (
                aiohttp.ClientSession(server.make_url("/")) as http,
                AsyncExitStack() as opened,
            ):
                await main(Logs(rig, store, http, opened))
            await links.close_all()
        await owner.close()
        store.close()
        reads.close()

    with_owner(tmp_path, play)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "GIVE_WAY_MAX_S", 60.0)


def test_a_frame_that_is_one_of_many_waits_and_a_line_does_not(tmp_path: Path) -> None:
    async def main(logs: Logs) -> None:
        storms, prints = await logs.link(), await logs.link()
        deciding = await logs.rig.deciding()
        await storms.send(OUT, 0, MUCH)
        await prints.send(ERR, 0, b"step 1\n")
        assert await prints.hear() == LogAck(ERR, 7)
        assert logs.store.size(OUT) == 0
        assert not deciding.done()
        logs.rig.journal.gate.set()
        assert await storms.hear() == LogAck(OUT, len(MUCH))
        await deciding

    with_logs(tmp_path, main)


def test_a_reader_of_many_bytes_waits_and_a_reader_of_a_line_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(logs: Logs) -> None:
        link = await logs.link()
        await link.send(OUT, 0, MUCH)
        await link.hear_until(LogAck(OUT, len(MUCH)))
        await link.send(ERR, 0, b"step 1\n")
        await link.hear_until(LogAck(ERR, 7))
        deciding = await logs.rig.deciding()
        asked = logs.rig.happened
        yield_to_scheduling = logs.rig.coordinator.yield_to_scheduling

        async def noted() -> None:
            asked.append("gives way")
            await yield_to_scheduling()

        monkeypatch.setattr(logs.rig.coordinator, "yield_to_scheduling", noted)
        assert await logs.read("stderr") == b"step 1\n"
        assert asked == ["commit begins"]
        much = asyncio.create_task(logs.read("stdout"))
        gives_way = asyncio.create_task(asked.until("gives way"))
        await asyncio.wait({much, gives_way}, return_when=asyncio.FIRST_COMPLETED)
        assert not much.done()
        logs.rig.journal.gate.set()
        assert await much == MUCH
        await asyncio.gather(deciding, gives_way)

    with_logs(tmp_path, main)
