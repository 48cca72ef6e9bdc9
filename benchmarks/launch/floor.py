"""The lower bound for a fan-out: bare aiohttp websockets, without Muster."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from aiohttp import web

_START_S = 20.0


class FanOut:
    """A server with open websockets to processes that spawn `true` on request."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._sockets: list[web.WebSocketResponse] = []
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fan-out", daemon=True)
        self._runner: web.AppRunner | None = None

    def once(self) -> tuple[float, float]:
        """Milliseconds until all have reported the start, and the end."""
        return asyncio.run_coroutine_threadsafe(self._once(), self._loop).result(_START_S)

    def start(self) -> int:
        """Start to serve; returns the port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(_START_S)

    def await_clients(self) -> None:
        deadline = time.monotonic() + _START_S
        while len(self._sockets) < self._clients:
            if time.monotonic() > deadline:
                raise TimeoutError("the clients of the fan-out did not connect")
            time.sleep(0.01)

    def close(self) -> None:
        if self._runner is not None:
            closing = asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop)
            closing.result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> int:
        app = web.Application()
        app.router.add_get("/", self._client)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _client(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self._sockets.append(socket)
        async for message in socket:
            self._heard.put_nowait(message.data)
        return socket

    async def _once(self) -> tuple[float, float]:
        began = time.perf_counter()
        for socket in self._sockets:
            await socket.send_str("true")
        missing = {"started": self._clients, "ended": self._clients}
        at: dict[str, float] = {}
        while any(missing.values()):
            word = await self._heard.get()
            missing[word] -= 1
            at[word] = time.perf_counter() - began
        return at["started"] * 1e3, at["ended"] * 1e3


@contextlib.contextmanager
def fan_out(clients: int) -> Iterator[FanOut]:
    """Yield a server with `clients` connected processes. All end afterwards."""
    server = FanOut(clients)
    port = server.start()
    command = [sys.executable, "-m", "benchmarks.launch.programs.fan_out_client", str(port)]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(clients)]
    try:
        server.await_clients()
        yield server
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.close()
