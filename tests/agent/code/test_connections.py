"""No process of the network can take the agent's descriptors at the port for code."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from agent.code.connections import CodeServer, ConnectionBounds
from agent.code.peers import CodePeers, NoPeerError, Swarm
from agent.code.store import CodeStore
from muster.bundle.manifest import digest
from muster.bundle.pack import unpack
from muster.http.bundles import CodePeer

TEXT = b"some code"
CHUNK = digest(TEXT)
LATER = digest(b"not here yet")
SWARM = Swarm("1.1", b"k" * 32, 0, 2, frozenset({CHUNK, LATER}))
ROOMY = ConnectionBounds(1000, 1000, 600.0, 1000, 600.0)
HEAD = b"POST /v1/code/1.1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"


@asynccontextmanager
async def giver(folder: Path, bounds: ConnectionBounds) -> AsyncIterator[CodePeers]:
    """A node that has one chunk, and waits very long for others."""
    store = CodeStore(folder / "code")
    store.prepare()
    store.keep([(CHUNK, memoryview(TEXT))])
    peers = CodePeers(store, 0, 600.0, bounds)
    peers.enter(SWARM)
    try:
        yield peers
    finally:
        await peers.close()


class Caller:
    """Connections from addresses of this machine, which send nothing by themselves."""

    def __init__(self, stack: AsyncExitStack, port: int) -> None:
        self._stack = stack
        self._port = port

    async def call(
        self, address: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(address, 0)
        )
        self._stack.callback(writer.close)
        return reader, writer


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has closed a connection without an answer."""
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


async def refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the first line of the answer to a request of no node."""
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return await reader.readline()


async def fetched(peers: CodePeers) -> bytes:
    """Return what a node of the gang gets."""
    data = await peers.ask(SWARM, CodePeer(0, "127.0.0.1", await peers.port()), [CHUNK])
    return b"".join(bytes(content) for _, content in unpack(data))


async def test_idle_connections_of_an_address_leave_room_for_a_node(tmp_path: Path) -> None:
    bounds = ROOMY._replace(pending_of_address=3)
    async with giver(tmp_path, bounds) as peers, AsyncExitStack() as stack:
        caller = Caller(stack, await peers.port())
        other = await caller.call("127.0.0.2")
        idle = [await caller.call() for _ in range(10)]
        for reader, _ in idle[:7]:
            await closed(reader)
        assert await fetched(peers) == TEXT
        assert b" 404 " in await refused(*idle[-1])
        assert b" 404 " in await refused(*other)


async def test_idle_connections_of_many_addresses_leave_room_for_a_node(tmp_path: Path) -> None:
    async with giver(tmp_path, ROOMY._replace(pending=3)) as peers, AsyncExitStack() as stack:
        caller = Caller(stack, await peers.port())
        idle = [await caller.call(f"127.0.0.{number}") for number in range(2, 12)]
        for reader, _ in idle[:7]:
            await closed(reader)
        assert await fetched(peers) == TEXT


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\nhalf of a body"])
async def test_a_request_has_to_be_whole_in_time(tmp_path: Path, sent: bytes) -> None:
    async with giver(tmp_path, ROOMY._replace(ask_s=0.01)) as peers, AsyncExitStack() as stack:
        reader, writer = await Caller(stack, await peers.port()).call()
        writer.write(sent)
        await closed(reader)


async def test_an_answer_has_to_be_taken_in_time(tmp_path: Path) -> None:
    async with giver(tmp_path, ROOMY._replace(answer_s=0.01)) as peers:
        peer = CodePeer(0, "127.0.0.1", await peers.port())
        with pytest.raises(NoPeerError):
            await peers.ask(SWARM, peer, [LATER])


async def test_nodes_that_wait_for_content_are_not_dropped_for_idle_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = asyncio.Event()
    known = CodeServer.known

    def note(server: CodeServer, request: web.BaseRequest) -> None:
        known(server, request)
        arrived.set()

    monkeypatch.setattr(CodeServer, "known", note)
    bounds = ROOMY._replace(pending=1, pending_of_address=1)
    async with giver(tmp_path, bounds) as peers, AsyncExitStack() as stack:
        peer = CodePeer(0, "127.0.0.1", await peers.port())
        waiting = asyncio.create_task(peers.ask(SWARM, peer, [LATER]))
        await arrived.wait()
        caller = Caller(stack, peer.port)
        idle = [await caller.call() for _ in range(3)]
        await closed(idle[0][0])
        await closed(idle[1][0])
        peers._store.keep([(LATER, memoryview(b"not here yet"))])
        peers.arrived()
        assert [bytes(data) for _, data in unpack(await waiting)] == [b"not here yet"]


async def test_answers_at_once_are_limited(tmp_path: Path) -> None:
    async with giver(tmp_path, ROOMY._replace(answers=0)) as peers:
        with pytest.raises(NoPeerError, match="503"):
            await fetched(peers)
