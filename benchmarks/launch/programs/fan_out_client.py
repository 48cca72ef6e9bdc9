"""Client of the floor: spawns `true` on request, and reports its start and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

import aiohttp


async def main(port: str) -> None:
    loop = asyncio.get_running_loop()
    program = shutil.which("true") or "/bin/true"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/") as socket,
    ):
        async for _ in socket:
            # A spawn and a reaping of a millisecond; a thread for each would be no floor.
            pid = os.posix_spawn(program, [program], {})  # noqa: ASYNC221
            await socket.send_str("started")
            ended = asyncio.Event()
            fd = os.pidfd_open(pid)
            loop.add_reader(fd, ended.set)
            await ended.wait()
            loop.remove_reader(fd)
            os.close(fd)
            os.waitpid(pid, 0)  # noqa: ASYNC222
            await socket.send_str("ended")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
