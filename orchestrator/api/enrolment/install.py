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
_ANSWERS: Final = 64
_ANSWERS_PER_ADDRESS: Final = 8
_ANSWER_S: Final = 300.0


class InstallApi:
    """Routes /v1/install.sh and /v1/wheels. Without a manifest, there is nothing to install."""

    def __init__(self, settings: EnrolmentSettings | None, requests_per_s: float) -> None:
        self._settings = settings
        self._requests = RateLimit(requests_per_s)
        self._answers = asyncio.Semaphore(_ANSWERS)
        self._of_address: Counter[str] = Counter()

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
        async with self._turn(request.remote or ""):
            file, size = await asyncio.to_thread(_opened, settings.wheels / name)
            try:
                response = BoundedAnswer()
                response.content_type, response.content_length = BYTES, size
                await response.prepare(request)
                while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    await response.write(piece)
                await response.write_eof()
            finally:
                file.close()
        return response

    async def _wheels(self, request: web.Request) -> tuple[EnrolmentSettings, Wheels]:
        wait_s = self._requests.take(request.remote, request.loop.time())
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

    @asynccontextmanager
    async def _turn(self, address: str) -> AsyncIterator[None]:
        """Bound the answers of one address, and those of all, in number and time."""
        if self._of_address[address] >= _ANSWERS_PER_ADDRESS:
            raise _busy(429, f"{_ANSWERS_PER_ADDRESS} wheels are on their way to {address}", 1)
        self._of_address[address] += 1
        try:
            async with asyncio.timeout(_ANSWER_S), self._answers:
                yield
        except TimeoutError as error:
            raise ConnectionError("the wheel was not taken in time") from error
        finally:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]


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
