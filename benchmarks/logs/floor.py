"""The floor: the same bytes through a bare aiohttp server in a separate process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.launch.processor import processor_ms

_FRAME = b"x" * (256 * 1024)


def measure(mib: int) -> tuple[float, float]:
    """MB per second of elapsed time, and per second of the server's processor time."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        size = mib << 20
        argv = [sys.executable, "-m", "benchmarks.logs.programs.floor_server"]
        server = subprocess.Popen(
            [*argv, str(Path(folder) / "log"), str(size)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            before = processor_ms(server.pid)
            took_s = asyncio.run(_send_and_read(f"http://127.0.0.1:{port}", mib))
            used_s = (processor_ms(server.pid) - before) / 1e3
        finally:
            server.kill()
            server.communicate()
    return size / 1e6 / took_s, size / 1e6 / used_s


async def _send_and_read(url: str, mib: int) -> float:
    async with aiohttp.ClientSession(url) as session:
        began = time.perf_counter()

        async def send() -> None:
            async with session.ws_connect("/take") as socket:
                for _ in range(mib * 4):
                    await socket.send_bytes(_FRAME)

        async def read() -> None:
            async with session.get("/give") as answer:
                async for _ in answer.content.iter_any():
                    pass

        await asyncio.gather(send(), read())
        return time.perf_counter() - began
