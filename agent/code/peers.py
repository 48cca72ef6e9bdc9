"""Exchange of code among the nodes of a gang, so that the coordinator sends each chunk about once.

The coordinator gives the nodes of an attempt a key, with which they seal requests and answers. A
node without the key gets nothing, and reads nothing on the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec
import structlog
from aiohttp import web

from agent.code.connections import CodeServer, ConnectionBounds
from agent.code.store import CodeStore
from muster.bundle.pack import PACK_BYTES, PACK_BYTES_MAX, PACK_CHUNKS, pack
from muster.http.bundles import ChunksRequest, CodePeer

_PATH: Final = "/v1/code"
_NONCE_BYTES: Final = 12
_BACKLOG: Final = 256
_READS: Final = 2
_KEPT_S: Final = 900.0
"""Seconds for which a node answers for an attempt after it has begun to fetch for it. Then it
forgets the key."""
_CONNECT_S: Final = 3.0
_READ_S: Final = 30.0

_log = structlog.get_logger("agent.code")


class NoPeerError(Exception):
    """A node that cannot be asked for content."""


@dataclass
class Swarm:
    """The nodes of one attempt that exchange a bundle. `name` is JOB.ATTEMPT, `allowed` the chunks
    of the bundle; `peers` grows."""

    name: str
    key: bytes
    rank: int
    nodes: int
    allowed: frozenset[str]
    peers: dict[int, CodePeer] = field(default_factory=dict)


class CodePeers:
    """Gives content of this node to the gangs it is in, and asks others."""

    def __init__(
        self,
        store: CodeStore,
        port: int,
        wait_s: float,
        bounds: ConnectionBounds = ConnectionBounds(),  # noqa: B008  immutable
        kept_s: float = _KEPT_S,
    ) -> None:
        """Listens at TCP port `port`, or at any if that is taken, once it is in a swarm. For
        `wait_s` it waits for content that is not here yet before it says so. After `kept_s` it
        answers for a swarm no more."""
        self._store = store
        self._wait_s = wait_s
        self._bounds = bounds
        self._kept_s = kept_s
        self._wanted_port = port
        self._swarms: dict[str, Swarm] = {}
        self._arrived = asyncio.Event()
        self._reads = asyncio.Semaphore(_READS)
        self._answers = 0
        self._server: CodeServer | None = None
        self._runner: web.ServerRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0
        self._starting = asyncio.Lock()

    async def port(self) -> int:
        """Return the port at which this node gives content; 0 if it cannot listen."""
        async with self._starting:
            if self._runner is None:
                self._server = CodeServer(self._answer, self._bounds)
                runner = web.ServerRunner(self._server)
                await runner.setup()
                self._runner = runner
                listener = _listener(self._wanted_port) or _listener(0)
                if listener is not None:
                    await web.SockSite(runner, listener).start()
                    self._port = listener.getsockname()[1]
        return self._port

    async def close(self) -> None:
        """Stop giving and asking."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def enter(self, swarm: Swarm) -> None:
        """Answer the nodes of a swarm from now on."""
        self._swarms[swarm.name] = swarm
        asyncio.get_running_loop().call_later(self._kept_s, self._leave, swarm)

    def _leave(self, swarm: Swarm) -> None:
        if self._swarms.get(swarm.name) is swarm:
            del self._swarms[swarm.name]

    def arrived(self) -> None:
        """Note that content has arrived, for those who wait for it."""
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def ask(self, swarm: Swarm, peer: CodePeer, chunks: Iterable[str]) -> bytes:
        """Return a pack of those chunks that a node has, after a while an empty one. Raises
        NoPeerError."""
        if self._session is None:
            # Any process may have sent the answer, so do not decompress it.
            self._session = aiohttp.ClientSession(auto_decompress=False)
        nonce = os.urandom(_NONCE_BYTES)
        body = msgspec.json.encode(ChunksRequest(tuple(chunks)))
        host = f"[{peer.address}]" if ":" in peer.address else peer.address
        try:
            async with self._session.post(
                f"http://{host}:{peer.port}{_PATH}/{swarm.name}",
                data=nonce + seal(swarm.key, nonce, body, b"ask"),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_S, sock_read=_READ_S
                ),
            ) as answer:
                if answer.status != 200:
                    raise NoPeerError(f"it answered {answer.status}")
                data = await _read(answer.content, PACK_BYTES_MAX + 64)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoPeerError(str(error)) from error
        return await asyncio.to_thread(unseal, swarm.key, data, nonce)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        response = await self._answer_to(request)
        response.force_close()
        return response

    async def _answer_to(self, request: web.BaseRequest) -> web.Response:
        path, _, name = request.path.rpartition("/")
        swarm = self._swarms.get(name)
        body = await request.read()
        if (request.method, path) != ("POST", _PATH) or swarm is None:
            return web.Response(status=404)
        try:
            data = unseal(swarm.key, body, b"ask")
            asked = msgspec.json.decode(data, type=ChunksRequest).chunks
        except (NoPeerError, msgspec.DecodeError, UnicodeDecodeError):
            return web.Response(status=404)  # as for an unknown swarm
        if len(asked) > PACK_CHUNKS or not swarm.allowed.issuperset(asked):
            return web.Response(status=422)
        if self._answers >= self._bounds.answers:
            return web.Response(status=503)
        if self._server is not None:
            self._server.known(request)
        self._answers += 1
        try:
            content = await self._content(asked)
            nonce = os.urandom(_NONCE_BYTES)
            sealed = await asyncio.to_thread(seal, swarm.key, nonce, content, body[:_NONCE_BYTES])
            return web.Response(body=nonce + sealed)
        finally:
            self._answers -= 1

    async def _content(self, chunks: tuple[str, ...]) -> bytes | bytearray:
        """Return a pack of what is here, once some of it is."""
        until = asyncio.get_running_loop().time() + self._wait_s
        while True:
            arrived = self._arrived
            async with self._reads:
                found = await asyncio.to_thread(self._store.read, chunks, PACK_BYTES)
            if found:
                return await asyncio.to_thread(pack, found)
            try:
                async with asyncio.timeout_at(until):
                    await arrived.wait()
            except TimeoutError:
                return b""


def _listener(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    with contextlib.suppress(OSError):
        return socket.create_server(("", port), backlog=_BACKLOG)
    return None


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    parts: list[bytes] = []
    async for part in content.iter_any():
        parts.append(part)
        most -= len(part)
        if most < 0:
            raise NoPeerError("it sent too much")
    return b"".join(parts)


def seal(key: bytes, nonce: bytes, data: bytes | bytearray, bound_to: bytes) -> bytes:
    """Encrypt and authenticate data, and what it belongs to."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(nonce, data, bound_to)


def unseal(key: bytes, data: bytes, bound_to: bytes) -> bytes:
    """Return what was sealed; `data` begins with its nonce. Raises NoPeerError."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        view = memoryview(data)
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], view[_NONCE_BYTES:], bound_to)
    except (InvalidTag, ValueError) as error:
        raise NoPeerError("it has another key") from error
