"""Large jobs wait in turn for a thread that parses them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from orchestrator.api.http import job_body
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import ApiError
from orchestrator.shell.bulk_reads import BulkReads


async def test_a_user_s_large_jobs_that_wait_are_bounded_and_another_user_s_are_taken() -> None:
    gate = threading.Event()
    parsers = BulkReads(threads=1)

    def parsing(user: str) -> asyncio.Task[object]:
        request: Any = {TOKEN: SimpleNamespace(user=user)}
        parse = cast("Any", gate.wait)
        return asyncio.create_task(job_body._in_turn(cast("web.Request", request), parsers, parse))

    taken = [parsing("ann") for _ in range(1 + job_body.WAITING_MAX)]
    beyond, other = parsing("ann"), parsing("bob")
    with pytest.raises(ApiError) as refused:
        await beyond
    assert refused.value.status == 429
    gate.set()
    await asyncio.gather(*taken, other)
    parsers.close()
