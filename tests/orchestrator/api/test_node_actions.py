"""Draining and resuming nodes over HTTP."""

import asyncio
from typing import Any

from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of


async def ask(user: User, verb: str, body: Any, node: str = "d1") -> tuple[int, Any]:
    async with user.http.post(f"/v1/nodes/{node}/{verb}", json=body) as answer:
        return answer.status, await answer.json()


async def test_drain_and_resume(coordinator: CoordinatorProcess) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        async with connect(coordinator, "d1") as agent:
            await agent.hello()
            status, said = await ask(user, "drain", {"reason": "bad  DIMM"})
            assert (status, said["changed"], said["node"]["admin"]) == (200, True, "drained")
            drain = said["node"]["drain"]
            assert (drain["user"], drain["reason"]) == ("admin-user", "bad DIMM")
            assert drain["at"].endswith("Z")
            assert (await ask(user, "drain", {"reason": "bad DIMM"}))[1]["changed"] is False
            wanted = {"reason": "later", "deadline_s": 60}
            _, said = await ask(user, "drain", wanted)
            assert said["node"]["drain"]["ends_at"].endswith("Z")
            found = await user.get("/v1/nodes/d1")
            assert found["state"]["text"].startswith("drained by admin-user since ")
            status, said = await ask(user, "resume", {})
            assert (status, said["node"]["admin"]) == (200, "active")
            assert (await ask(user, "resume", {}))[1]["changed"] is False
            await ask(user, "drain", {"reason": "reboot", "now": True})
        status, said = await ask(user, "resume", {})
        while status == 200:  # the end of the connection has not been noticed
            await ask(user, "drain", {"reason": "reboot"})
            status, said = await ask(user, "resume", {})
        assert (status, said["code"]) == (409, "check_failed")
        assert "d1 is not connected" in said["detail"]
        assert (await ask(user, "resume", {"check": False}))[0] == 200
        events = (await user.get("/v1/events"))["events"]
        texts = [it["text"] for it in events if it["kind"] in ("NodeDrained", "NodeResumed")]
        assert texts[0] == "node d1 drained by admin-user: bad DIMM"
        assert texts[-1] == "node d1 resumed by admin-user"


async def test_an_impossible_request_is_refused_by_name(coordinator: CoordinatorProcess) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        async with connect(coordinator, "d2") as agent:
            await agent.hello()
        for body, word in (
            ({"reason": "  "}, "reason"),
            ({"reason": "x", "now": True, "after_checkpoint": True}, "after_checkpoint"),
            ({"reason": "x", "now": True, "deadline_s": 5}, "deadline_s"),
            ({"reason": "x", "deadlin_s": 5}, "deadlin_s"),
        ):
            status, said = await ask(user, "drain", body, "d2")
            assert (status, word in said["detail"]) == (422, True)
        assert (await ask(user, "drain", {}, "d2"))[0] == 400
        assert (await ask(user, "drain", {"reason": "x", "deadline_s": -1}, "d2"))[0] == 400
        for verb, body in (("drain", {"reason": "x"}), ("resume", {})):
            status, said = await ask(user, verb, body, "nobody")
            assert (status, said["code"]) == (404, "unknown_node")
        assert (await user.get("/v1/nodes/d2"))["admin"] == "active"


async def test_a_node_that_is_gone_is_removed(coordinator: CoordinatorProcess) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        async with connect(coordinator, "d3") as agent:
            await agent.hello()
            status, said = await ask(user, "remove", {}, "d3")
            assert (status, said["code"]) == (409, "node_connected")
            assert "stop its agent" in said["hint"]
        while status == 409:  # the end of the connection has not been noticed
            status, said = await ask(user, "remove", {}, "d3")
        assert (status, said["node"]["name"], said["changed"]) == (200, "d3", True)
        assert (await ask(user, "remove", {}, "d3"))[0] == 404
        names = [node["name"] for node in (await user.get("/v1/nodes"))["nodes"]]
        assert "d3" not in names
        assert (await ask(user, "remove", {"force": True}, "d3"))[0] == 422
        events = (await user.get("/v1/events"))["events"]
        assert "node d3 removed by admin-user" in [it["text"] for it in events]
