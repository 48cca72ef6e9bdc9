"""Routes from which a machine without a package index installs Muster.

They are open, as wheels are published files and no secret. A machine cannot send its secret before
it has Muster: only then can it verify the CA.
"""

from __future__ import annotations

import asyncio
import math
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO, Final

from aiohttp import web

from orchestrator.api.enrolment.install_script import install_script
from orchestrator.api.http.connection_limits import BoundedAnswer
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.route import BYTES
from orchestrator.enrolment import EnrolmentSettings, Wheels

SCRIPT: Final = "text/x-shellscript"
_PIECE_BYTES: Final = 256 << 10
_PER_ADDRESS: Final = 8


class Downloads:
    """The places of downloads that go on at once: a bounded number, and of one address a part of
    them. A reader that is slower than `bytes_per_s`, after `start_s`, loses its place, so that slow
    readers cannot keep others out. Who waits for a place longer than `wait_s` is refused.
    """

    def __init__(
        self,
        places: int = 64,
        start_s: float = 15.0,
        bytes_per_s: float = 64 << 10,
        wait_s: float = 20.0,
    ) -> None:
        self._free = asyncio.Semaphore(places)
        self._start_s = start_s
        self._bytes_per_s = bytes_per_s
        self._wait_s = wait_s
        self._of_address: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it. Raises ApiError (429 or 503) if there is none."""
        if self._of_address[address] >= _PER_ADDRESS:
            raise _busy(429, f"{_PER_ADDRESS} wheels are on their way to {address}", 1)
        self._of_address[address] += 1
        try:
            await self._wait()
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    @asynccontextmanager
    async def in_time(self, size: int) -> AsyncIterator[None]:
        """Bound the time in which `size` bytes are taken. Raises ConnectionError."""
        try:
            async with asyncio.timeout(self._start_s + size / self._bytes_per_s):
                yield
        except TimeoutError as error:
            raise ConnectionError("the wheel was not taken in time") from error

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise _busy(503, "too many wheels are on their way", 5) from error


class InstallApi:
    """Routes /v1/install.sh and /v1/wheels. Without a manifest, there is nothing to install."""

    def __init__(
        self,
        settings: EnrolmentSettings | None,
        requests_per_s: float,
        downloads: Downloads | None = None,
    ) -> None:
        self._settings = settings
        self._requests = RateLimit(requests_per_s)
        self._downloads = downloads or Downloads()

    async def script(self, request: web.Request) -> web.Response:
        """Return the script, with the hashes of the wheels in it."""
        settings, wheels = await self._wheels(request)
        text = install_script(wheels.manifest, settings.address, wheels.pin)
        return web.Response(text=text, content_type=SCRIPT)

    async def wheel(self, request: web.Request) -> web.StreamResponse:
        """Send a wheel that the manifest names."""
        settings, wheels = await self._wheels(request)
        name = request.match_info["id"]
        if settings.wheels is None or name not in wheels.manifest.wheels():
            raise ApiError(404, "unknown_wheel", "the manifest of the wheels has no such name")
        async with self._downloads.place(request.remote or ""):
            file, size = await asyncio.to_thread(_opened, settings.wheels / name)
            with file:
                response = BoundedAnswer()
                response.content_type, response.content_length = BYTES, size
                async with self._downloads.in_time(size):
                    await response.prepare(request)
                    while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                        await response.write(piece)
                    await response.write_eof()
        return response

    async def _wheels(self, request: web.Request) -> tuple[EnrolmentSettings, Wheels]:
        wait_s = self._requests.take(request.remote, asyncio.get_running_loop().time())
        if wait_s:
            raise _busy(429, f"too many requests from {request.remote}", math.ceil(wait_s))
        settings = self._settings
        wheels = None if settings is None else await asyncio.to_thread(settings.read_wheels)
        if settings is None or wheels is None:
            raise ApiError(
                404,
                "no_wheels",
                "this coordinator has no wheels from which Muster can be installed",
                "on its machine: muster up",
            )
        return settings, wheels


def _opened(path: os.PathLike[str]) -> tuple[BinaryIO, int]:
    """Open a regular file, not a link. Returns it with its size."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _lost() from error
    file = open(fd, "rb")  # noqa: SIM115 - the caller closes it
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise _lost()
    return file, found.st_size


def _lost() -> ApiError:
    return ApiError(404, "wheel_lost", "the wheel is missing in the folder", "run: muster up")


def _busy(status: int, detail: str, wait_s: int) -> ApiError:
    return ApiError(status, "too_many_installs", detail, headers={"Retry-After": str(wait_s)})
