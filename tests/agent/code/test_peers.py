"""Nodes of a gang fetch code from each other, and each chunk from the coordinator about once."""

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from agent.code.fetch import CodeFetcher, FetchLimits
from agent.code.peers import CodePeers, NoPeerError, Swarm, seal
from agent.code.store import CodeStore
from muster.bundle.manifest import CodeManifest, File, digest, encode
from muster.bundle.pack import pack, unpack
from muster.daemon.clock import SystemClock
from muster.http.bundles import ChunksRequest, CodePeer, PeersAnswer, PeersRequest
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask

NODES = 3
KEY = b"k" * 32
TEXTS = {digest(text): text for text in (b"chunk %d" % number for number in range(30))}
FILES = tuple(File(name[:8], len(text), False, (name,)) for name, text in TEXTS.items())
TREE = CodeManifest(FILES)
MANIFEST = encode(TREE)
TASK = PrepareTask(
    TaskId("1.1.0"), "none", None, None, (), {}, 1.0, bundle=digest(MANIFEST), ticket="t"
)


SMALL = FetchLimits(shared_bytes=1, news_s=0.01, absent_s=0.0, wait_s=0.01)
"""Share a bundle of any size, and give up at once."""
PATIENT = SMALL._replace(absent_s=600.0, nothing_new_s=600.0, wait_s=10.0)


class Coordinator:
    """Sends content, and knows the ports of the nodes. `sent` counts how often each chunk was."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.asked = asyncio.Event()
        self.ports: dict[int, int] = {}

    async def request(
        self, _method: str, path: str, body: bytes | None, _headers: Mapping[str, str], _most: int
    ) -> bytes:
        *_, task, kind = path.split("/")
        rank = int(task.rpartition(".")[2])
        if kind == "bundle":
            return MANIFEST
        if kind == "blobs":
            wanted = msgspec.json.decode(body or b"")["chunks"]
            self.sent.update(wanted)
            self.asked.set()
            return bytes(pack((chunk, TEXTS[chunk]) for chunk in wanted))
        self.ports[rank] = msgspec.json.decode(body or b"", type=PeersRequest).port
        known = tuple(CodePeer(at, "127.0.0.1", port) for at, port in self.ports.items())
        return msgspec.json.encode(PeersAnswer(KEY.hex(), rank, NODES, known))


@asynccontextmanager
async def nodes(
    folder: Path, coordinator: Any, count: int = NODES, limits: FetchLimits = SMALL
) -> AsyncIterator[list[CodeFetcher]]:
    """Fetchers of as many nodes."""
    made = []
    for number in range(count):
        store = CodeStore(folder / f"code-{number}")
        store.prepare()
        made.append(CodeFetcher(store, coordinator, SystemClock(), limits=limits))
    try:
        yield made
    finally:
        for each in made:
            await each.peers.close()


async def test_the_coordinator_sends_each_chunk_once(tmp_path: Path) -> None:
    coordinator = Coordinator()
    async with nodes(tmp_path, coordinator, limits=PATIENT) as made:
        tasks = [replace(TASK, task=TaskId(f"1.1.{rank}")) for rank in range(NODES)]
        await asyncio.gather(*(node.fetch(task) for node, task in zip(made, tasks, strict=True)))
        assert coordinator.sent == Counter(dict.fromkeys(TEXTS, 1))
        assert not any(node.store.missing(TREE) for node in made)


async def test_a_node_whose_peers_are_away_asks_the_coordinator(tmp_path: Path) -> None:
    coordinator = Coordinator()
    coordinator.ports[1] = 1  # nobody listens there, and node 2 never comes
    async with nodes(tmp_path, coordinator, 1) as (node,):
        manifest = await node.fetch(TASK)
        assert manifest is not None
        assert coordinator.sent == Counter(dict.fromkeys(TEXTS, 1))
        assert not node.store.missing(manifest)


async def test_a_cancel_ends_a_fetch_that_waits_for_peers(tmp_path: Path) -> None:
    coordinator = Coordinator()
    async with nodes(tmp_path, coordinator, 1, PATIENT) as (node,):
        fetching = asyncio.create_task(node.fetch(TASK))
        await coordinator.asked.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert not node._pinned


async def test_a_node_gives_only_what_is_in_the_bundle_and_only_to_its_gang(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, Coordinator(), 2) as (giver, asker):
        inside, outside = list(TEXTS)[:2]
        other = digest(b"of another job")
        giver.store.keep([(name, memoryview(TEXTS[name])) for name in (inside, outside)])
        swarm = Swarm("1.1", KEY, 0, 2, frozenset({inside, other}))
        giver.peers.enter(swarm)
        peer = CodePeer(0, "127.0.0.1", await giver.peers.port())
        found = dict(unpack(await asker.peers.ask(swarm, peer, [inside])))
        assert {name: bytes(data) for name, data in found.items()} == {inside: TEXTS[inside]}
        assert await asker.peers.ask(swarm, peer, [other]) == b""
        with pytest.raises(NoPeerError, match="422"):
            await asker.peers.ask(swarm, peer, [outside])
        for stranger in (
            Swarm("1.1", b"x" * 32, 0, 2, swarm.allowed),
            Swarm("1.2", KEY, 0, 2, swarm.allowed),
        ):
            with pytest.raises(NoPeerError, match="404"):
                await asker.peers.ask(stranger, peer, [inside])


async def test_a_node_forgets_an_attempt_after_its_time(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "code")
    store.prepare()
    store.keep((name, memoryview(text)) for name, text in TEXTS.items())
    for kept_s, gives in ((600.0, True), (0.0, False)):
        giver, asker = (CodePeers(store, 0, 0.0, kept_s=kept_s) for _ in range(2))
        swarm = Swarm("1.1", KEY, 0, 2, frozenset(TEXTS))
        giver.enter(swarm)
        try:
            peer = CodePeer(0, "127.0.0.1", await giver.port())
            if gives:
                assert await asker.ask(swarm, peer, list(TEXTS)[:1])
            else:
                with pytest.raises(NoPeerError, match="404"):
                    await asker.ask(swarm, peer, list(TEXTS)[:1])
        finally:
            await giver.close()
            await asker.close()


async def test_what_is_no_request_of_a_node_is_refused(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, Coordinator(), 1) as (giver,),
        aiohttp.ClientSession() as http,
    ):
        giver.peers.enter(Swarm("1.1", KEY, 0, 2, frozenset(TEXTS)))
        url = f"http://127.0.0.1:{await giver.peers.port()}/v1/code/1.1"
        plain = msgspec.json.encode(ChunksRequest(tuple(TEXTS)))
        nonce = b"n" * 12
        for body in (b"", b"x", plain, nonce + seal(KEY, nonce, b"[", b"ask")):
            async with http.post(url, data=body) as answer:
                assert answer.status == 404


@asynccontextmanager
async def liar(answer: bytes | bytearray, **headers: str) -> AsyncIterator[CodePeer]:
    """A node that has the key, and answers each request with `answer`."""

    async def give(request: web.Request) -> web.Response:
        nonce = (await request.read())[:12]
        data = b"n" * 12 + seal(KEY, b"n" * 12, answer, nonce)
        if headers:
            data = gzip.compress(data)
        return web.Response(body=data, headers=headers)

    app = web.Application()
    app.router.add_post("/v1/code/1.1", give)
    async with TestServer(app) as server:
        yield CodePeer(1, str(server.host), int(server.port or 0))


async def test_what_a_node_gives_damaged_comes_from_the_coordinator(tmp_path: Path) -> None:
    coordinator = Coordinator()
    damaged = bytearray(pack(TEXTS.items()))
    damaged[36] ^= 1  # in the first chunk
    async with (
        liar(bytes(damaged)) as peer,
        nodes(tmp_path, coordinator, 1) as (node,),
    ):
        coordinator.ports[1] = peer.port
        manifest = await node.fetch(TASK)
        assert manifest is not None
        assert coordinator.sent == Counter(dict.fromkeys(TEXTS, 1))
        assert not node.store.missing(manifest)


async def test_a_compressed_answer_of_a_node_is_not_unpacked(tmp_path: Path) -> None:
    """A small one may be of any size unpacked, and any process may listen at a port."""
    async with (
        liar(pack(TEXTS.items()), **{"Content-Encoding": "gzip"}) as peer,
        nodes(tmp_path, Coordinator(), 1) as (node,),
    ):
        with pytest.raises(NoPeerError):
            await node.peers.ask(Swarm("1.1", KEY, 0, 2, frozenset(TEXTS)), peer, list(TEXTS))


async def test_a_damaged_chunk_of_a_node_is_not_given(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "code")
    store.prepare()
    first, second = list(TEXTS)[:2]
    store.keep([(name, memoryview(TEXTS[name])) for name in (first, second)])
    (tmp_path / "code/chunks" / first[:2] / first).write_bytes(b"other bytes")
    assert store.read([first, second], 100) == [(second, TEXTS[second])]
