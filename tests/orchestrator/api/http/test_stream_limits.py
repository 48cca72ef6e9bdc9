"""Streams beyond the limits are refused with the number, and taken again once one has ended."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess


@pytest.mark.parametrize(
    ("limit", "status", "text"),
    [
        ("streams_per_user_max", 429, "user admin-user has 2 streams open"),
        ("streams_max", 503, "2 streams are open"),
    ],
)
def test_a_stream_too_many_is_refused_until_one_ends(
    tmp_path: Path, limit: str, status: int, text: str
) -> None:
    async def main(process: CoordinatorProcess) -> None:
        async with (
            asyncio.timeout(180),
            aiohttp.ClientSession(process.url, headers=process.headers()) as http,
            AsyncExitStack() as held,
        ):

            async def follow() -> aiohttp.ClientResponse:
                return await held.enter_async_context(http.get("/v1/events?follow=1"))

            first, second = await follow(), await follow()
            assert (first.status, second.status) == (200, 200)
            refused = await follow()
            problem = await refused.json()
            assert (refused.status, problem["code"]) == (status, "too_many_streams")
            assert text in problem["detail"]
            assert limit in problem["hint"]
            async with http.get("/v1/events") as page:
                assert page.status == 200, "a page is no stream"
            first.close()
            # Its handler finds the connection closed when it has something to write.
            async with connect(process, "n1") as agent:
                await agent.hello()
            while (await follow()).status != 200:
                pass

    with CoordinatorProcess(tmp_path, limits={limit: 2}).start() as process:
        asyncio.run(main(process))
