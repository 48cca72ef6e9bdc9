"""GET /v1/nodes: in the order of their names, page by page."""

import asyncio
import contextlib
from typing import Any

from muster.http.views import FaultView, NodeView, Reason
from orchestrator.api.nodes import without_others_words
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

NAMES = ["p1", "p2", "p10", "p010", "p100"]


async def refused(user: User, query: str) -> Any:
    async with user.http.get(f"/v1/nodes?{query}") as answer:
        assert answer.status == 400
        return (await answer.json())["code"]


async def test_page_after_page_has_each_node_once(coordinator: CoordinatorProcess) -> None:
    async with (
        asyncio.timeout(180),
        user_of(coordinator) as user,
        contextlib.AsyncExitStack() as all_,
    ):
        for name in reversed(NAMES):
            await (await all_.enter_async_context(connect(coordinator, name))).hello()
        whole = await user.get("/v1/nodes")
        names = [node["name"] for node in whole["nodes"]]
        assert [name for name in names if name in NAMES] == ["p1", "p2", "p010", "p10", "p100"]
        assert whole["cursor"] is None
        found: list[str] = []
        cursor, pages = "", 0
        while True:
            page = await user.get(f"/v1/nodes?limit=2{cursor}")
            assert len(page["nodes"]) <= 2
            found += [node["name"] for node in page["nodes"]]
            pages += 1
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert found == names
        assert pages == -(-len(names) // 2)
        full = await user.get(f"/v1/nodes?limit={len(names)}")
        assert (len(full["nodes"]), full["cursor"]) == (len(names), None), "full, and the last"


async def test_a_node_that_goes_meanwhile_does_not_hold_up_the_next_page(
    coordinator: CoordinatorProcess,
) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        for name in ("q1", "q2"):
            async with connect(coordinator, name) as agent:
                await agent.hello()
        page = await user.get("/v1/nodes?limit=1000")
        place = [node["name"] for node in page["nodes"]].index("q1") + 1
        first = await user.get(f"/v1/nodes?limit={place}")
        assert first["nodes"][-1]["name"] == "q1"
        while True:  # as soon as the end of its connection has been noticed
            async with user.http.post("/v1/nodes/q1/remove", json={}) as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.05)
        after = await user.get(f"/v1/nodes?cursor={first['cursor']}")
        assert after["nodes"][0]["name"] == "q2"


async def test_an_invalid_page_is_refused(coordinator: CoordinatorProcess) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        for query in ("limit=0", "limit=1001", "limit=x"):
            assert await refused(user, query) == "bad_query"
        # The last one is of the list of jobs: `jobs<5`.
        for cursor in ("x", "%21", "bm9kZXM8", "am9iczw1"):
            assert await refused(user, f"cursor={cursor}") == "bad_cursor"


def test_text_quoted_in_a_fault_is_hidden_like_its_job() -> None:
    faults = (FaultView(3, 1, "of ann", 0), FaultView(5, 1, "of bob", 0))
    state = Reason("free", "free")
    view = NodeView(
        "n1", "connected", state, "", "", 0, "", 0, 0, {}, None, None, None, "",
        faults=faults,
    )  # fmt: skip
    bobs = without_others_words(view, {5})
    assert [fault.text for fault in bobs.faults] == ["", "of bob"]
    assert without_others_words(view, {3, 5}) == view
