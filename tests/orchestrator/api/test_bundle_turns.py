"""Users and nodes take turns at the store of code, and nodes wait for no user."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from muster.protocol.tokens import TokenClass
from orchestrator.api.bundles.transfers import BundlesApi, TransferLimits
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import ROUTE, Handler
from orchestrator.api.routes import ROUTES
from orchestrator.core.model.people import KnownToken
from orchestrator.shell.bundles.store import FullQuotaError
from tests.orchestrator.fake_agent import DEADLINE_S

CHUNK = "c" * 64
LARGE = "d" * 64
LIMITS = TransferLimits()
CHUNKS = next(route for route in ROUTES if route.handler is BundlesApi.chunks)
MISSING = next(route for route in ROUTES if route.path == "/v1/blobs:missing")


class SlowStore:
    """A store whose answers to `ann` and `eve` wait for a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.manifests = 0
        self._changed = threading.Condition()

    async def until(self, reached: Callable[["SlowStore"], bool]) -> None:
        """Wait until the calls that run have this property."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: reached(self), DEADLINE_S)

        assert await asyncio.to_thread(wait), self.running

    def check_size(self, _size: int) -> None:
        """Accept all."""

    def missing(self, user: str, _chunks: Sequence[str], _now: float) -> list[str]:
        with self._changed:
            self.running[user] += 1
            self.most[user] = max(self.most[user], self.running[user])
            self._changed.notify_all()
        if user in {"ann", "eve"}:
            self.gate.wait(2 * DEADLINE_S)
        with self._changed:
            self.running[user] -= 1
        return []

    def manifest(self, _bundle: str) -> tuple[bytes, Any]:
        self.manifests += 1
        return b"manifest", SimpleNamespace(chunks=lambda: {CHUNK: 1, LARGE: 9 << 20})

    def chunk(self, _sha256: str) -> bytes:
        self.missing("ann", (), 0.0)
        return b"x"


class Api(BundlesApi):
    """Every ticket is good."""

    async def _of_task(self, request: web.Request) -> Any:
        rank = int(request.query.get("rank", "0"))
        return SimpleNamespace(job=1, attempt=1, rank=rank, bundle="b" * 64)


@web.middleware
async def sign_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    user = request.headers["User"]
    request[ROUTE] = MISSING if request.path == "/missing" else CHUNKS
    request[TOKEN] = KnownToken("1", TokenClass.USER, "", user)
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(status=error.status)


@asynccontextmanager
async def served(
    store: SlowStore, limits: TransferLimits = LIMITS
) -> AsyncIterator[tuple[TestClient[web.Request, web.Application], BundlesApi]]:
    jobs = {1: SimpleNamespace(spec=SimpleNamespace(bundle="b" * 64))}
    coordinator = SimpleNamespace(
        now=lambda: SimpleNamespace(wall=0.0),
        durable_state=AsyncMock(return_value=SimpleNamespace(jobs=jobs)),
    )
    api = Api(cast("Any", coordinator), cast("Any", store), limits)
    app = web.Application(middlewares=[sign_in])
    app.router.add_post("/missing", api.missing)
    app.router.add_post("/put", api.put)
    app.router.add_get("/manifest", api.manifest)
    app.router.add_post("/chunks", api.chunks)
    async with TestClient(TestServer(app)) as client:
        try:
            yield client, api
        finally:
            store.gate.set()
            api.close()


async def test_a_flood_of_questions_delays_neither_others_nor_nodes() -> None:
    store = SlowStore()

    async def asks(client: TestClient[web.Request, web.Application], user: str) -> int:
        headers = {"User": user}
        async with client.post("/missing", json={"chunks": []}, headers=headers) as answer:
            return answer.status

    async with served(store) as (client, _), asyncio.timeout(DEADLINE_S):
        flood = [asyncio.create_task(asks(client, "ann")) for _ in range(40)]
        assert await asks(client, "bob") == 200
        flood += [asyncio.create_task(asks(client, "eve")) for _ in range(40)]
        await store.until(lambda store: store.running.total() == 4)
        async with client.get("/manifest", headers={"User": ""}) as answer:
            assert (answer.status, await answer.read()) == (200, b"manifest")
        store.gate.set()
        assert set(await asyncio.gather(*flood)) == {200}
    assert (store.most["ann"], store.most["eve"]) == (2, 2)


async def test_a_task_has_two_answers_with_chunks_at_a_time() -> None:
    """So that a node that reads none of them does not fill the memory."""
    store = SlowStore()
    asked: dict[str, Any] = {"json": {"chunks": [CHUNK]}, "headers": {"User": ""}}

    async def fetches(client: TestClient[web.Request, web.Application], rank: int) -> int:
        async with client.post(f"/chunks?rank={rank}", **asked) as answer:
            await answer.read()
            return answer.status

    async with served(store) as (client, _), asyncio.timeout(DEADLINE_S):
        flood = [asyncio.create_task(fetches(client, 0)) for _ in range(20)]
        await store.until(lambda store: store.running["ann"] == 2)
        # Another task's fetch runs beside them.
        flood.append(asyncio.create_task(fetches(client, 1)))
        await store.until(lambda store: store.running["ann"] == 3)
        store.gate.set()
        assert set(await asyncio.gather(*flood)) == {200}
    assert store.most["ann"] == 3


async def test_all_tasks_have_few_answers_at_a_time() -> None:
    store = SlowStore()
    asked: dict[str, Any] = {"json": {"chunks": [CHUNK]}, "headers": {"User": ""}}

    async def fetches(client: TestClient[web.Request, web.Application], rank: int) -> int:
        async with client.post(f"/chunks?rank={rank}", **asked) as answer:
            await answer.read()
            return answer.status

    few = LIMITS._replace(fetches=2)
    async with served(store, few) as (client, _), asyncio.timeout(DEADLINE_S):
        gang = [asyncio.create_task(fetches(client, rank)) for rank in range(12)]
        await store.until(lambda store: store.running["ann"] == 2)
        store.gate.set()
        assert set(await asyncio.gather(*gang)) == {200}
    # The list of files is read and decoded once for them all.
    assert (store.most["ann"], store.manifests) == (2, 1)


async def test_a_node_asks_for_one_pack_at_a_time() -> None:
    store = SlowStore()
    store.gate.set()
    async with served(store) as (client, _):
        for chunks, status in (([LARGE], 200), ([LARGE, CHUNK], 200), ([LARGE] * 2, 422)):
            asked: dict[str, Any] = {"json": {"chunks": chunks}, "headers": {"User": ""}}
            async with client.post("/chunks", **asked) as answer:
                assert answer.status == status, chunks


async def test_an_answer_that_takes_too_long_makes_room() -> None:
    store = SlowStore()
    asked: dict[str, Any] = {"json": {"chunks": [CHUNK]}, "headers": {"User": ""}}
    late = TransferLimits(fetches=1, fetch_s=0.05)
    async with served(store, late) as (client, api), asyncio.timeout(DEADLINE_S):
        async with client.post("/chunks", **asked) as answer:
            assert answer.status == 503
        api.limits = LIMITS
        store.gate.set()
        async with client.post("/chunks", **asked) as answer:
            assert answer.status == 200


BYTES = {"User": "ann", "Content-Type": "application/octet-stream"}


class FullStore(SlowStore):
    """A store in which a user has reached the quota, unless it is `freed`."""

    def __init__(self, *, frees: bool) -> None:
        super().__init__()
        self.frees, self.freed = frees, False

    def put(self, _user: str, _data: bytes, _now: float) -> int:
        if not self.freed:
            raise FullQuotaError("full")
        return 1

    def drop_unused(self, user: str, live: set[str], _now: float) -> int:
        assert (user, live) == ("ann", {"b" * 64})
        self.freed = self.frees
        return 1


@pytest.mark.parametrize(("frees", "status"), [(True, 201), (False, 413)])
async def test_at_the_quota_unused_code_makes_room(frees: bool, status: int) -> None:
    async with (
        served(FullStore(frees=frees)) as (client, _),
        client.post("/put", data=b"x", headers=BYTES) as answer,
    ):
        assert answer.status == status


async def test_an_upload_that_trickles_makes_room_for_others() -> None:
    rest = asyncio.Event()

    async def trickle() -> AsyncIterator[bytes]:
        yield b"x"
        await rest.wait()

    impatient = LIMITS._replace(grace_s=0.05)
    async with served(SlowStore(), impatient) as (client, _), asyncio.timeout(DEADLINE_S):
        async with client.post("/put", data=trickle(), headers=BYTES) as answer:
            assert answer.status == 408
        rest.set()
