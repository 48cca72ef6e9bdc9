"""A user of the HTTP API, for tests."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.orchestrator.process import CoordinatorProcess

JOB: dict[str, Any] = {"run": ["/bin/true"], "launcher": "none", "nodes": 1}


class User:
    """A session with an admin's token."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def submit(self, key: str = "", **fields: Any) -> int:
        headers = {"Idempotency-Key": key} if key else {}
        async with self.http.post("/v1/jobs", json={**JOB, **fields}, headers=headers) as answer:
            body = await answer.json()
            assert answer.status in (200, 201), body
            number: int = body["id"]
            return number

    async def get(self, path: str) -> Any:
        async with self.http.get(path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def ended(self, job: int) -> tuple[str, int]:
        """State and exit code of a job, once it has ended."""
        summary = await self.get(f"/v1/jobs/{job}/wait?timeout_s=120")
        assert summary["ended_at"] is not None, summary
        return summary["state"], summary["exit_code"]

    async def cancel(self, job: int) -> Any:
        async with self.http.post(f"/v1/jobs/{job}/cancel") as answer:
            assert answer.status == 202, await answer.text()
            return await answer.json()

    async def logs(self, job: int, query: str = "") -> list[Any]:
        """Every line of a log stream, read to its end; the last one is the trailer."""
        async with self.http.get(f"/v1/jobs/{job}/logs?{query}") as answer:
            assert answer.status == 200, await answer.text()
            return [json.loads(line) async for line in answer.content]


@asynccontextmanager
async def user_of(coordinator: CoordinatorProcess) -> AsyncIterator[User]:
    async with aiohttp.ClientSession(coordinator.url, headers=coordinator.headers()) as http:
        yield User(http)
