"""A minimal log store over aiohttp: writes frames to a file, and sends the file to a reader."""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

_READ_BYTES = 64 * 1024


class Floor:
    """A single file with a writer and a reader; no names, order, acknowledgements or syncs."""

    def __init__(self, path: Path, size: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._size = size
        self._written = 0
        self._grown = asyncio.Event()

    async def take(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=1 << 20)
        await socket.prepare(request)
        async for message in socket:
            self._written += os.write(self._fd, message.data)
            self._grown.set()
        return socket

    async def give(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        at = 0
        while at < self._size:
            while at == self._written:
                self._grown.clear()
                await self._grown.wait()
            data = os.pread(self._fd, _READ_BYTES, at)
            at += len(data)
            await response.write(data)
        await response.write_eof()
        return response


async def main() -> None:
    floor = Floor(Path(sys.argv[1]), int(sys.argv[2]))
    app = web.Application()
    app.router.add_get("/take", floor.take)
    app.router.add_get("/give", floor.give)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
