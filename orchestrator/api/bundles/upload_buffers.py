"""Bodies of uploads, read into memory that the next upload uses again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import BYTES

_BODY_S: Final = 300.0
_BODY_BYTES_PER_S: Final = 64 << 10
"""The least rate of an upload, after the first seconds: it holds one of a few places."""
_SPARE: Final = 2
_SPARE_S: Final = 10.0


class UploadBuffers:
    """The memory. What is spare is freed some seconds after the last upload.

    Of a buffer that grows with the body, the kernel clears each page, and each growth may copy what
    is there.
    """

    def __init__(self) -> None:
        self._spare: list[bytearray] = []
        self._free: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def body(
        self, request: web.Request, most: int, grace_s: float
    ) -> AsyncIterator[memoryview]:
        """The body of a request, of at most `most` bytes, valid in the context. Raises ApiError
        (408, 413, 415)."""
        if request.content_type != BYTES:
            raise ApiError(415, "unsupported_media_type", "the body is not bytes", f"send {BYTES}")
        length = request.content_length
        if length is not None and length > most:
            raise _too_large(most)
        buffer = self._take(most if length is None else length)
        size = await _fill(request, buffer, most, grace_s)
        yield memoryview(buffer)[:size]
        # After an error it is not used again: if the request was cancelled, a thread may still read
        # it, and would store bytes of another body than it has verified.
        self._give(buffer)

    def _take(self, size: int) -> bytearray:
        for at, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                return self._spare.pop(at)
        return bytearray(size)

    def _give(self, buffer: bytearray) -> None:
        self._spare = sorted([buffer, *self._spare], key=len, reverse=True)[:_SPARE]
        if self._free is not None:
            self._free.cancel()
        self._free = asyncio.get_running_loop().call_later(_SPARE_S, self._spare.clear)


async def _fill(request: web.Request, buffer: bytearray, most: int, grace_s: float) -> int:
    """Read a body into a buffer, and return its size. Raises ApiError (408, 413)."""
    size = 0
    # An assignment to the buffer itself copies the part twice.
    view = memoryview(buffer)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(grace_s) as limit:
            async for part in request.content.iter_any():
                end = size + len(part)
                if end > len(buffer):
                    raise _too_large(most)
                view[size:end] = part
                size = end
                limit.reschedule(began + min(_BODY_S, grace_s + size / _BODY_BYTES_PER_S))
    except TimeoutError:
        raise ApiError(
            408,
            "request_timeout",
            f"the body arrives at less than {_BODY_BYTES_PER_S >> 10} KiB/s, or takes more than "
            f"{_BODY_S:g} s",
            "try again, and send smaller packs",
            headers={"Connection": "close"},
        ) from None
    return size


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        "body_too_large",
        f"the body is larger than {most} bytes",
        headers={"Connection": "close"},
    )
