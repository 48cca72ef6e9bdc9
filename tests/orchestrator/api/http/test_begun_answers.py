"""An answer that has begun and cannot go on is cut short: nothing is written into its midst."""

import asyncio
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from muster.daemon.clock import SystemClock
from muster.daemon.errors import DaemonError
from orchestrator.api.http.access import AccessTable
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.middleware import add_headers, request_middleware
from orchestrator.api.http.route import Route, as_text
from orchestrator.api.http.tokens import TokenStore
from orchestrator.core.model.people import People
from orchestrator.core.rights.principals import Policy
from orchestrator.core.rights.rules import Action


@pytest.mark.filterwarnings("ignore:request.loop property")
@pytest.mark.parametrize("error", [DaemonError("it cannot be read"), RuntimeError("a mistake")])
def test_a_stream_that_fails_ends_without_its_end_and_without_another_answer(
    error: Exception,
) -> None:
    async def stream(_api: object, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"the first part")
        raise error

    async def main() -> bytes:
        tokens = TokenStore(People(), SystemClock())
        route = Route("GET", "/healthz", stream, Action.CHECK_HEALTH, "fails", answers=as_text())
        owners: Any = None
        access = AccessTable([route], tokens, owners, Policy(), refusals_per_s=1)
        app = web.Application(
            middlewares=[request_middleware(access, Origins(None), lambda *_: None)]
        )
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/healthz", partial(stream, None))
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            reader, writer = await asyncio.open_connection(*runner.addresses[0])
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(180):
                answer = await reader.read()
            writer.close()
            return answer
        finally:
            await runner.cleanup()

    answer = asyncio.run(main())
    assert b"the first part" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert not answer.endswith(b"0\r\n\r\n"), "who reads it must not take it for whole"
