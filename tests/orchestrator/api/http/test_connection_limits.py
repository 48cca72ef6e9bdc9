"""Connections that never say who they are, never finish their request, or never take the answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from muster.protocol.tokens import TokenClass, digest
from orchestrator.api.http import connection_limits
from orchestrator.api.http.connection_limits import (
    BoundedAnswer,
    ConnectionLimits,
    GuardedConnection,
)
from orchestrator.api.http.middleware import add_headers
from orchestrator.api.http.problems import ApiError
from orchestrator.core.model.people import KnownToken

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"
Dial = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def token(name: str, class_: TokenClass = TokenClass.ADMIN) -> KnownToken:
    return KnownToken(id=name, class_=class_, sha256=digest("x"), user="u")


async def fine(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="fine")


@contextlib.asynccontextmanager
async def serving(
    connections: ConnectionLimits,
    serve: Handler = fine,
    connection: type[GuardedConnection] = GuardedConnection,
) -> AsyncIterator[Dial]:
    """A server of guarded connections over loopback, with the middleware's two calls."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        assert isinstance(request.protocol, GuardedConnection)
        request.protocol.request_began()
        try:
            name = request.headers.get("X-Token")
            if name is not None:
                class_ = TokenClass.JOIN if name == "join" else TokenClass.ADMIN
                request.protocol.authenticated(token(name, class_))
            return await handler(request)
        except ApiError as error:
            return web.Response(status=error.status)
        finally:
            request.protocol.request_ended()

    app = web.Application(middlewares=[middleware])
    app.router.add_route("*", "/", serve)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    manager = runner.server
    assert manager is not None
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection(connections, manager), "127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def dial(
        address: str = "127.0.0.1",
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), local_addr=(address, 0)
        )
        writers.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(180):
            yield dial
    finally:
        for writer in writers:
            writer.close()
        server.close()
        await runner.cleanup()


def short(**changes: Any) -> ConnectionLimits:
    given = {"pending_per_address_max": 100, "per_token_max": 100, "head_s": 0.2, **changes}
    return ConnectionLimits(**given)


async def rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"reset"


async def trickle(writer: asyncio.StreamWriter) -> None:
    """Headers without end, a byte after the other."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.001)


async def test_a_head_that_never_ends_is_cut_off() -> None:
    async with serving(short()) as dial:
        reader, writer = await dial()
        writer.write(REQUEST + b"X-Slow: ")
        task = asyncio.create_task(trickle(writer))
        answer = await rest(reader)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in answer
        # It is cut off, however long it goes on.
        await task


async def test_a_head_that_grows_without_end_is_cut_off() -> None:
    """The part that has arrived is kept in memory, and its sender is not authenticated yet."""
    async with serving(short(head_s=60.0)) as dial:
        reader, writer = await dial()
        writer.write(REQUEST + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 8000) for n in range(6)))
        assert await rest(reader) in (b"", b"reset")


async def test_a_large_body_is_no_large_head() -> None:
    async with serving(short(head_s=60.0), answers_whole) as dial:
        reader, writer = await dial()
        size = 4 * connection_limits.HEAD_BYTES_MAX
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % size
        writer.write(head + b"\r\n" + b"x" * size)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(head + b"Connection: close\r\n\r\n" + b"x" * size)
        assert (await reader.read()).count(b"131072") == 2


async def answers_whole(request: web.Request) -> web.StreamResponse:
    return web.Response(text=str(len(await request.read())))


async def test_a_head_that_is_whole_in_the_turn_in_which_its_time_is_over_is_in_time() -> None:
    class Late(GuardedConnection):
        __slots__ = ()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head_is_late()

    async with serving(short(head_s=60.0), connection=Late) as dial:
        reader, writer = await dial()
        writer.write(REQUEST + b"\r\n")
        assert await reader.readuntil(b"fine")


async def test_a_request_that_is_about_to_be_handled_is_in_time() -> None:
    class Late(GuardedConnection):
        __slots__ = ()

        async def _handle_request(self, *args: Any) -> tuple[web.StreamResponse, bool]:
            self._head_is_late()
            return await super()._handle_request(*args)

    async with serving(short(head_s=60.0), connection=Late) as dial:
        reader, writer = await dial()
        writer.write(REQUEST + b"\r\n")
        assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200 ")


async def test_a_silent_connection_is_closed_without_an_answer() -> None:
    async with serving(short()) as dial:
        reader, _ = await dial()
        assert await rest(reader) == b""


async def test_a_kept_connection_has_the_same_deadline_for_its_next_head() -> None:
    async with serving(short(head_s=2.0)) as dial:
        reader, writer = await dial()
        for _ in range(2):
            writer.write(REQUEST + b"\r\n")
            assert await reader.readuntil(b"fine")
        writer.write(b"G")
        assert await rest(reader) == b""


async def test_a_slow_handler_and_an_idle_kept_connection_are_none_of_its_business() -> None:
    late = asyncio.Event()

    async def slow(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.2)  # longer than a head may take
        late.set()
        return web.Response(text="fine")

    async with serving(short(head_s=1.0), slow) as dial:
        reader, writer = await dial()
        writer.write(REQUEST + b"\r\n")
        assert await reader.readuntil(b"fine")
        await asyncio.sleep(1.2)
        writer.write(REQUEST + b"\r\n")
        assert await reader.readuntil(b"fine")


async def test_the_oldest_of_too_many_that_have_not_said_who_they_are_goes() -> None:
    async with serving(short(pending_per_address_max=3, head_s=60)) as dial:
        known = await dial()
        known[1].write(REQUEST + b"X-Token: a\r\n\r\n")
        await known[0].readuntil(b"fine")
        pending = [await dial() for _ in range(3)]
        newest = await dial()
        assert await rest(pending[0][0]) in (b"", b"reset")
        for reader, writer in (known, pending[1], pending[2], newest):
            writer.write(REQUEST + b"\r\n")
            assert await reader.readuntil(b"fine")


@pytest.mark.parametrize(("name", "status"), [("a", b"429"), ("b", b"200"), ("join", b"200")])
async def test_a_token_has_so_many_connections(name: str, status: bytes) -> None:
    async with serving(short(per_token_max=2, head_s=60)) as dial:
        for holder in ("a", "a", "join", "join"):
            reader, writer = await dial()
            writer.write(REQUEST + f"X-Token: {holder}\r\n\r\n".encode())
            await reader.readuntil(b"fine")
        reader, writer = await dial()
        writer.write(REQUEST + f"X-Token: {name}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == status


async def test_a_connection_that_went_is_not_counted() -> None:
    connections = short(per_token_max=1, head_s=60)
    async with serving(connections) as dial:
        for _ in range(3):
            reader, writer = await dial()
            writer.write(REQUEST + b"X-Token: a\r\nConnection: close\r\n\r\n")
            assert b"fine" in await rest(reader)
            writer.close()
    assert connections._by_token == {}
    assert connections._pending == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_not_taken(stream: bool) -> None:
    """A plain one is given up; a stream may wait, as it holds little."""
    size = 32 << 20
    write_s = 0.2
    waits, gone = asyncio.Event(), asyncio.Event()

    class Watched(GuardedConnection):
        __slots__ = ()

        def pause_writing(self) -> None:
            super().pause_writing()
            waits.set()

        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            gone.set()

    async def large(request: web.Request) -> web.StreamResponse:
        assert isinstance(request.protocol, GuardedConnection)
        request.protocol.patient = stream
        return web.Response(body=bytes(size))

    async with serving(short(head_s=60.0, write_s=write_s), large, Watched) as dial:
        reader, writer = await dial()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST + b"Connection: close\r\n\r\n")
        await waits.wait()
        # The loop's timers end in their order: an earlier one of the same length has ended then.
        await (asyncio.sleep(write_s) if stream else gone.wait())
        assert gone.is_set() is not stream
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (len(await rest(reader)) > size) is stream


@pytest.mark.parametrize("bound", ["answers_per_token_bytes", "answers_bytes"])
async def test_answers_that_nobody_reads_are_bounded_and_the_slowest_goes(bound: str) -> None:
    size = 16 << 20
    answered = asyncio.Semaphore(0)

    async def large(_request: web.Request) -> web.StreamResponse:
        answered.release()
        return web.Response(body=bytes(size))

    async with serving(short(head_s=60.0, **{bound: 2 * size}), large) as dial:
        readers = []
        for number in range(4):
            name = "one" if bound == "answers_per_token_bytes" else f"t{number}"
            reader, writer = await dial()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(REQUEST + f"X-Token: {name}\r\n\r\n".encode())
            await answered.acquire()
            readers.append((reader, writer))
        sizes = []
        for reader, writer in readers:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            try:
                await reader.readuntil(b"\r\n\r\n")
                sizes.append(len(await reader.readexactly(size)))
            except (asyncio.IncompleteReadError, ConnectionResetError):
                sizes.append(0)
        # The kernel has taken a part of each.
        assert (sizes[0], sizes[-1]) == (0, size)


async def unread(dial: Dial, begun: asyncio.Semaphore, *addresses: str) -> list[Any]:
    """Requests with the nodes' join token, whose answers nobody reads yet."""
    found = []
    for address in addresses:
        reader, writer = await dial(address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST + b"X-Token: join\r\n\r\n")
        await begun.acquire()
        found.append((reader, writer))
    return found


async def sizes(found: list[Any], size: int) -> list[int]:
    """Bytes of each answer that arrive once it is read."""
    arrived = []
    for reader, writer in found:
        writer.transport.resume_reading()
        try:
            await reader.readuntil(b"\r\n\r\n")
            arrived.append(len(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            arrived.append(0)
    return arrived


async def test_nodes_that_share_a_token_do_not_cut_each_other_off() -> None:
    size = 16 << 20
    begun = asyncio.Semaphore(0)

    async def large(_request: web.Request) -> web.StreamResponse:
        begun.release()
        return web.Response(body=bytes(size))

    limits = short(head_s=60.0, answers_per_token_bytes=size)
    async with serving(limits, large) as dial:
        found = await unread(dial, begun, "127.0.0.2", "127.0.0.3", "127.0.0.2")
        # The kernel has taken a part of each, so that two of one node are beyond the limit.
        assert await sizes(found, size) == [0, size, size]


@pytest.mark.parametrize("late", [False, True])
async def test_answers_of_which_few_are_sent_are_cut_by_time_alone(late: bool) -> None:
    size = 16 << 20
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def bounded(request: web.Request) -> web.StreamResponse:
        answer = BoundedAnswer()
        answer.content_length = size
        await add_headers(request, answer)
        await answer.prepare(request)
        begun.release()
        try:
            for _ in range(16):
                await answer.write(bytes(size // 16))
        finally:
            ended.release()
        return answer

    limits = short(head_s=60.0, answers_bytes=1, write_s=0.1 if late else 60.0)
    async with serving(limits, bounded) as dial:
        found = await unread(dial, begun, "127.0.0.1", "127.0.0.1")
        if late:
            await ended.acquire()
            await ended.acquire()
        assert await sizes(found, size) == ([0, 0] if late else [size, size])
