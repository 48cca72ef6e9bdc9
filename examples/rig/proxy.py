"""A TCP proxy that simulates a bad network under a test's control.

    with Proxy(("127.0.0.1", 7077), seed=7) as proxy:
        connect_to(proxy.port)
        proxy.shape(up=Way(delay_s=1.0), down=Way(rate=64_000))  # both ways, now and from now on
        proxy.shape(down=Way(flow=Flow.SWALLOW))                 # half open: no FIN, no RST
        proxy.mend()
        proxy.cut()                                              # RST to both ends

`up` is from the dialing to the listening side. Netem does the same to packets, but is not in every
kernel and needs root; the proxy needs neither. Bytes behind a delayed piece wait, as behind a lost
TCP segment. Each connection has its own random numbers, from `seed` and its number, so that every
run is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

_PIECE_BYTES: Final = 4096  # bytes that a connection sends before it is another's turn
_LINE_PIECES: Final = 256  # maximum in flight; a sender waits beyond it, as in a network
_SOCKET_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 30.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST
_T = TypeVar("_T")


class Flow(enum.Enum):
    """OPEN. HOLD: nothing comes out, and the sender's buffers fill; afterwards it continues.
    SWALLOW: everything is read and discarded, so only a new connection helps. Neither lets a FIN or
    RST through.
    """

    OPEN = "open"
    HOLD = "hold"
    SWALLOW = "swallow"


class End(enum.Enum):
    """The two ways in which a cut connection ends: like a program's close, or like a crash."""

    FIN = "fin"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Way:
    """Conditions for bytes in one direction.

    `rate` is in bytes per second, and all connections share it. Of pieces of 4 KiB, the share
    `stalls` waits `stall_s`, and everything behind them. After `cut_after` bytes a connection ends
    by `end`; one that has moved more ends at once.
    """

    flow: Flow = Flow.OPEN
    delay_s: float = 0.0
    rate: float | None = None
    stalls: float = 0.0
    stall_s: float = 0.0
    cut_after: int | None = None
    end: End = End.RESET


@dataclass(frozen=True, slots=True)
class _Shape:
    path: str
    ways: tuple[Way, Way]


_PLAIN: Final = _Shape("", (Way(), Way()))


class _Direction:
    """A direction of a connection. `moved` counts the delivered bytes."""

    def __init__(self, number: int, source: socket.socket, target: socket.socket, seed: str):
        self.number = number
        self.source = source
        self.target = target
        self.moved = 0
        self.swallows = False
        self.line: asyncio.Queue[tuple[float, bytes | End]] = asyncio.Queue(_LINE_PIECES)
        self.chance = random.Random(seed)  # noqa: S311  chance of a test, no secret


@dataclass(eq=False)
class Connection:
    """A connection through the proxy, kept after its end. `path` is that of its HTTP request, if
    readable.
    """

    up: _Direction
    down: _Direction
    ending: asyncio.Future[End]
    path: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def moved(self) -> tuple[int, int]:
        """Delivered bytes upwards and downwards."""
        return self.up.moved, self.down.moved


@dataclass
class _Line:
    """State shared by all connections in one direction."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0


class Proxy:
    """Forwards connections to `target`, in a separate thread. `listen` with port 0 chooses a free
    port.

    `network` is the context in which the thread creates its sockets: `Machine.network` of a rig's
    machine. All methods may be called from any other thread.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        seed: int = 0,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        network: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._target = target
        self._seed = seed
        self._listen = listen
        self._network = network
        self._shapes = [_PLAIN]
        self._refuses = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._lines = (_Line(), _Line())
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections: list[Connection] = []

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_PATIENCE_S) or self._error is not None:
            raise self._error or TimeoutError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)

    # --- called by the test -----------------------------------------------------------------------

    def shape(self, *, up: Way | None = None, down: Way | None = None, path: str = "") -> None:
        """Set the conditions for current and future connections. With `path`, only for those whose
        HTTP request begins with it (TLS hides it). The last of several matches applies.
        """
        self._do(self._set([*self._shapes, _Shape(path, (up or Way(), down or Way()))]))

    def mend(self) -> None:
        """Reset all conditions. Swallowed bytes and refused connections stay lost."""
        self._do(self._set([_PLAIN]))

    def refuse(self, *, refused: bool = True) -> None:
        """Reset new connections at once, or no longer."""
        self._refuses = refused

    def cut(self, end: End = End.RESET, path: str = "") -> int:
        """End connections on both sides. Returns their number."""
        return self._do(self._cut(end, path))

    def half_close(self, path: str = "") -> int:
        """Send FIN to the dialing side, whose bytes still pass. Returns the number of
        connections.
        """
        return self._do(self._half_close(path))

    def live(self, path: str = "") -> list[Connection]:
        """Return the current connections."""
        return [
            c for c in list(self.connections) if not c.over.is_set() and c.path.startswith(path)
        ]

    # --- the thread -------------------------------------------------------------------------------

    def _do(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_PATIENCE_S)

    def _run(self) -> None:
        try:
            with self._network(), socket.create_server(self._listen, backlog=1024) as server:
                server.setblocking(False)
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
                self.port = server.getsockname()[1]
                self._spawn(self._accept(server))
                self._loop.call_soon(self._ready.set)
                self._loop.run_forever()
                for task in self._tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        except OSError as error:
            self._error = error
            self._ready.set()
        finally:
            self._loop.close()

    def _spawn(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _set(self, shapes: list[_Shape]) -> None:
        self._shapes = shapes
        self._changed.set()
        self._changed = asyncio.Event()

    async def _cut(self, end: End, path: str) -> int:
        those = self.live(path)
        for connection in those:
            _end(connection, end)
        for connection in those:
            await connection.over.wait()
        return len(those)

    async def _half_close(self, path: str) -> int:
        those = self.live(path)
        for connection in those:
            connection.down.swallows = True
            with contextlib.suppress(OSError):
                connection.down.target.shutdown(socket.SHUT_WR)
        return len(those)

    async def _accept(self, server: socket.socket) -> None:
        for number in itertools.count():
            near, _ = await self._loop.sock_accept(server)
            if self._refuses:
                _close(near, End.RESET)
                continue
            self._spawn(self._serve(number, near))

    async def _serve(self, number: int, near: socket.socket) -> None:
        """Serve one connection, from its acceptance to its end."""
        far = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        end = End.RESET
        try:
            far.setblocking(False)
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            await self._loop.sock_connect(far, self._target)
            up = _Direction(0, near, far, f"{self._seed} {number} up")
            down = _Direction(1, far, near, f"{self._seed} {number} down")
            connection = Connection(up, down, self._loop.create_future())
            self.connections.append(connection)
            try:
                end = await self._carry(connection)
            finally:
                _close(near, end)
                _close(far, end)
                connection.over.set()
        except OSError:
            _close(near, End.RESET)
            _close(far, End.RESET)

    async def _carry(self, connection: Connection) -> End:
        """Move bytes until both directions have ended or the connection is cut. Returns how to
        close it.
        """
        ways = (connection.up, connection.down)
        readers = [self._loop.create_task(self._read(connection, way)) for way in ways]
        writers = [self._loop.create_task(self._write(connection, way)) for way in ways]
        both = asyncio.gather(*writers)
        try:
            await asyncio.wait((both, connection.ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*readers, *writers):
                task.cancel()
            await asyncio.gather(*readers, *writers, both, return_exceptions=True)
        return connection.ending.result() if connection.ending.done() else End.FIN

    async def _read(self, connection: Connection, way: _Direction) -> None:
        offset, due = 0, 0.0
        while True:
            # Split at piece boundaries, so that chance depends on bytes and not on reads.
            fresh = offset % _PIECE_BYTES == 0
            try:
                data = await self._loop.sock_recv(way.source, _PIECE_BYTES - offset % _PIECE_BYTES)
            except OSError:
                await way.line.put((due, End.RESET))
                return
            if offset == 0 and way.number == 0:
                connection.path = _path_of(data)
            wanted = self._way(connection, way)
            waits = wanted.stall_s if fresh and way.chance.random() < wanted.stalls else 0.0
            due = max(due, self._loop.time() + wanted.delay_s) + waits
            offset += len(data)
            await way.line.put((due, data or End.FIN))
            if not data:
                return

    async def _write(self, connection: Connection, way: _Direction) -> None:
        while True:
            due, piece = await way.line.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            wanted = await self._passable(connection, way)
            way.swallows |= wanted.flow is Flow.SWALLOW
            if isinstance(piece, End):
                if not way.swallows:
                    if piece is End.RESET:
                        _end(connection, End.RESET)
                    with contextlib.suppress(OSError):
                        way.target.shutdown(socket.SHUT_WR)
                return
            if way.swallows:
                continue
            if wanted.cut_after is not None:
                piece = piece[: max(0, wanted.cut_after - way.moved)]
            try:
                await self._send(way, piece, wanted.rate)
            except OSError:
                _end(connection, End.RESET)
                return
            if wanted.cut_after is not None and way.moved >= wanted.cut_after:
                _end(connection, wanted.end)
                return

    async def _send(self, way: _Direction, piece: bytes, rate: float | None) -> None:
        line = self._lines[way.number]
        if rate is not None:
            # First come, first served, so that each waits for at most one piece of every other.
            async with line.turn:
                line.free_at = max(line.free_at, self._loop.time()) + len(piece) / rate
                await asyncio.sleep(line.free_at - self._loop.time())
        way.moved += len(piece)
        await self._loop.sock_sendall(way.target, piece)

    async def _passable(self, connection: Connection, way: _Direction) -> Way:
        while (wanted := self._way(connection, way)).flow is Flow.HOLD:
            await self._changed.wait()
        return wanted

    def _way(self, connection: Connection, way: _Direction) -> Way:
        shape = next(s for s in reversed(self._shapes) if connection.path.startswith(s.path))
        return shape.ways[way.number]


def _end(connection: Connection, end: End) -> None:
    if not connection.ending.done():
        connection.ending.set_result(end)


def _close(sock: socket.socket, end: End) -> None:
    with contextlib.suppress(OSError):
        if end is End.RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def _path_of(data: bytes) -> str:
    words = data.partition(b"\r\n")[0].split(b" ")
    return words[1].decode("ascii", "replace") if len(words) == 3 else ""
