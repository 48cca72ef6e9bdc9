"""Memory of uploads: what is read into it, and when it is used again."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from orchestrator.api.bundles.upload_buffers import UploadBuffers
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import BYTES
from tests.orchestrator.fake_agent import DEADLINE_S

HEADERS = {"Content-Type": BYTES}
MOST = 100_000


async def test_memory_is_used_again_unless_the_request_failed() -> None:
    buffers = UploadBuffers()
    bodies: list[memoryview] = []
    fails = True

    async def put(request: web.Request) -> web.Response:
        try:
            async with buffers.body(request, MOST, DEADLINE_S) as data:
                bodies.append(data)
                if fails:
                    raise RuntimeError
        except RuntimeError:
            return web.Response(status=500)
        except ApiError as error:
            return web.Response(status=error.status)
        return web.Response()

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (MOST // 2)

    app = web.Application(client_max_size=1)
    app.router.add_post("/", put)
    async with TestClient(TestServer(app)) as client, asyncio.timeout(DEADLINE_S):

        async def send(data: bytes | AsyncIterator[bytes]) -> int:
            async with client.post("/", data=data, headers=HEADERS) as answer:
                # An answer may come before the body has been sent.
                answer.close()
                return answer.status

        assert await send(b"failed") == 500
        fails = False
        assert await send(b"larger " * 1000) == 200
        # A thread may still read the body of the request that failed.
        assert bytes(bodies[0]) == b"failed"
        assert bytes(bodies[1]) == b"larger " * 1000
        assert await send(b"short") == 200
        assert bytes(bodies[2]) == b"short"
        assert bodies[2].obj is bodies[1].obj
        assert await send(b"") == 200
        assert await send(b"x" * (MOST + 1)) == 413
        assert await send(parts()) == 413
        assert await send(b"x" * MOST) == 200
        assert len(bodies) == 5
