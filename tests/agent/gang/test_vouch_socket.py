"""The socket of vouches, with real datagrams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agent.core import effects as a
from agent.core.inputs import VouchReceived
from agent.core.state import State
from agent.gang import vouch_socket
from agent.gang.vouch_socket import VouchSocket, open_socket
from muster.protocol.link.terms import Member, Terms
from tests.agent.core.test_vouching import PLAN, TASKS, asked, member

DEADLINE_S = 180.0


class Counted(socket.socket):
    """Counts the datagrams that are read in each turn of the event loop."""

    reads = 0
    most = 0

    def recvfrom(self, *arguments: Any) -> Any:
        received = super().recvfrom(*arguments)
        self.reads += 1
        self.most = max(self.most, self.reads)
        asyncio.get_running_loop().call_soon(self._begin)
        return received

    def _begin(self) -> None:
        self.reads = 0


@asynccontextmanager
async def serving(
    folder: Path, state: State, counted: Callable[[Counted], None] = lambda _: None
) -> AsyncIterator[tuple[VouchSocket, int, asyncio.Queue[VouchReceived]]]:
    opened = open_socket(0, folder, shared=True)
    assert opened is not None
    sock = Counted(fileno=opened.detach())
    counted(sock)
    posted: asyncio.Queue[VouchReceived] = asyncio.Queue()
    made = VouchSocket(sock, state, posted.put_nowait)
    try:
        yield made, sock.getsockname()[1], posted
    finally:
        made.close()


def folder_of(root: Path, name: str) -> Path:
    made = root / name
    made.mkdir()
    return made


async def test_an_agent_asks_another_and_gets_its_vouch(tmp_path: Path) -> None:
    second = member(1)
    async with serving(folder_of(tmp_path, "2"), second.state) as (_, port, _):
        pair = tuple(Member(task, "127.0.0.1", port) for task in TASKS[:2])
        first = member(0, plan=replace(PLAN, terms=Terms(1, members=pair)))
        async with serving(folder_of(tmp_path, "1"), first.state) as (mine, _, posted):
            (data,) = asked(first).values()
            mine.ask((a.Question("127.0.0.1", port, data),))
            async with asyncio.timeout(DEADLINE_S):
                received = await posted.get()
    first.turn(received)
    assert first.state.tasks[TASKS[0]].voted_at == first.mono


async def test_a_flood_is_read_in_parts_and_answered_once_it_is_over(tmp_path: Path) -> None:
    second = member(1)
    question = asked(member(0))["10.0.0.1"]
    sockets: list[Counted] = []
    async with serving(tmp_path, second.state, sockets.append) as (_, port, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for _ in range(vouch_socket.BATCH):
                sender.sendto(b"x" * 300, ("127.0.0.1", port))
            sender.sendto(question, ("127.0.0.1", port))
            async with asyncio.timeout(DEADLINE_S):
                given = await asyncio.get_running_loop().sock_recv(sender, 2048)
    assert given
    assert sockets[0].most <= vouch_socket.BATCH, "the agent read more than its part at once"


async def test_a_question_that_nobody_takes_does_no_harm(tmp_path: Path) -> None:
    second = member(1)
    question = asked(member(0))["10.0.0.1"]
    async with serving(tmp_path, second.state) as (made, port, _):
        nobody = ("127.0.0.1", 1), ("192.0.2.1", 9), ("::1", 1), ("not an address", 5)
        made.ask(tuple(a.Question(*where, b"x") for where in nobody))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(question, ("127.0.0.1", port))
            async with asyncio.timeout(DEADLINE_S):
                assert await asyncio.get_running_loop().sock_recv(sender, 2048)


def test_a_port_is_kept_for_the_next_agent_process(tmp_path: Path) -> None:
    first = open_socket(0, tmp_path, shared=True)
    assert first is not None
    port = first.getsockname()[1]
    first.close()
    again = open_socket(0, tmp_path, shared=True)
    assert again is not None
    assert again.getsockname()[1] == port
    beside = folder_of(tmp_path, "beside")
    assert open_socket(port, beside, shared=False) is None
    other = open_socket(port, beside, shared=True)
    assert other is not None
    assert other.getsockname()[1] != port
    again.close()
    other.close()
