"""Users take turns at the store of code, and nodes wait for none of them."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from muster.protocol.tokens import TokenClass
from orchestrator.api.bundles.transfers import BundlesApi
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.route import ROUTE, Handler
from orchestrator.api.routes import ROUTES
from orchestrator.core.model.people import KnownToken
from tests.orchestrator.fake_agent import DEADLINE_S

MISSING = next(route for route in ROUTES if route.path == "/v1/blobs:missing")


class SlowStore:
    """A store whose answers to `ann` and `eve` wait for a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._lock = threading.Lock()

    def check_size(self, _size: int) -> None:
        """Accept all."""

    def missing(self, user: str, _chunks: Sequence[str], _now: float) -> list[str]:
        with self._lock:
            self.running[user] += 1
            self.most[user] = max(self.most[user], self.running[user])
        if user in {"ann", "eve"}:
            self.gate.wait(2 * DEADLINE_S)
        with self._lock:
            self.running[user] -= 1
        return []

    def manifest(self, _bundle: str) -> tuple[bytes, Any]:
        return b"manifest", SimpleNamespace(chunks=dict)


class Api(BundlesApi):
    """Every ticket is good."""

    async def _of_task(self, _request: web.Request) -> Any:
        return SimpleNamespace(bundle="b" * 64)


@web.middleware
async def sign_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    user = request.headers["User"]
    request[ROUTE] = MISSING
    request[TOKEN] = KnownToken("1", TokenClass.USER, "", user)
    return await handler(request)


@asynccontextmanager
async def served(store: SlowStore) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    coordinator = SimpleNamespace(now=lambda: SimpleNamespace(wall=0.0))
    api = Api(cast("Any", coordinator), cast("Any", store))
    app = web.Application(middlewares=[sign_in])
    app.router.add_post("/missing", api.missing)
    app.router.add_get("/manifest", api.manifest)
    async with TestClient(TestServer(app)) as client:
        try:
            yield client
        finally:
            store.gate.set()
            api.close()


async def test_a_flood_of_questions_delays_neither_others_nor_nodes() -> None:
    store = SlowStore()

    async def asks(client: TestClient[web.Request, web.Application], user: str) -> int:
        headers = {"User": user}
        async with client.post("/missing", json={"chunks": []}, headers=headers) as answer:
            return answer.status

    async with served(store) as client, asyncio.timeout(DEADLINE_S):
        flood = [asyncio.create_task(asks(client, "ann")) for _ in range(40)]
        assert await asks(client, "bob") == 200
        flood += [asyncio.create_task(asks(client, "eve")) for _ in range(40)]
        while store.running.total() < 4:
            assert not flood[0].done()
            await asyncio.sleep(0)
        async with client.get("/manifest", headers={"User": ""}) as answer:
            assert (answer.status, await answer.read()) == (200, b"manifest")
        store.gate.set()
        assert set(await asyncio.gather(*flood)) == {200}
    assert (store.most["ann"], store.most["eve"]) == (2, 2)
