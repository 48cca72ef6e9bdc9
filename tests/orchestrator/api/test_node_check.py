"""Hardware of a node, and its check against the other nodes, over HTTP."""

import asyncio
from typing import Any

import msgspec

from muster.protocol.link.control_channel import Inventory, PrepareTask
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.states import TaskState
from tests.orchestrator.core.fabrics import full
from tests.orchestrator.fake_agent import FakeAgent, connect, prepared
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

GPU = GpuDevice("0000:1b:00.0", "GPU-1", "NVIDIA H100 80GB HBM3")


def inventory(name: str, **more: Any) -> Inventory:
    return Inventory("127.0.0.1", f"machine-{name}", cpus=4, **more)


async def check(user: User, node: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    path = f"/v1/nodes/{node}/check"
    async with user.http.post(path, json=body or {}, headers=headers) as answer:
        if answer.status in (200, 201):
            assert answer.headers["Location"].startswith("/v1/jobs/")
        return answer.status, await answer.json()


async def test_the_probe_of_a_node(coordinator: CoordinatorProcess) -> None:
    async def prepare(agent: FakeAgent) -> None:
        task = (await agent.expect(PrepareTask)).task
        made = msgspec.structs.replace(prepared(), fabric=full("k1").fabric)
        await agent.report(task, TaskState.PREPARED, prepared=made)
        await agent.arrange(task)
        await agent.finish(task)

    async with asyncio.timeout(180), user_of(coordinator) as user:
        async with connect(coordinator, "k1") as agent:
            described = inventory("k1", hostname="k1.local", gpus=1, devices=(GPU,), pool="k")
            await agent.hello(inventory=described)
            found = await user.get("/v1/nodes/k1/probe")
            assert (found["connected"], found["hostname"]) == (True, "k1.local")
            assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-1"]
            assert (found["fabric"], found["rdma"]) == (None, None)
            job = await user.submit(name="k", pool="k")
            await prepare(agent)
            fabric = (await user.get("/v1/nodes/k1/probe"))["fabric"]
            assert (fabric["job"], fabric["attempt"]) == (job, 1)
            first = fabric["ports"][0]
            assert (first["name"], first["port"], first["rate_gbps"]) == ("mlx5_0", 1, 400.0)
        async with user.http.get("/v1/nodes/nobody/probe") as answer:
            assert (answer.status, (await answer.json())["code"]) == (404, "unknown_node")


async def test_a_check_is_a_job_of_the_node_and_the_free_ones_of_its_pool(
    coordinator: CoordinatorProcess,
) -> None:
    async with asyncio.timeout(180), user_of(coordinator) as user:
        async with (
            connect(coordinator, "c1") as one,
            connect(coordinator, "c2") as two,
            connect(coordinator, "c3") as drained,
            connect(coordinator, "c4") as other,
        ):
            for agent, pool in ((one, "c"), (two, "c"), (drained, "c"), (other, "elsewhere")):
                await agent.hello(inventory=inventory(agent.name, pool=pool))
            async with user.http.post("/v1/nodes/c3/drain", json={"reason": "fan"}) as answer:
                assert answer.status == 200
            status, said = await check(user, "c3")
            assert (status, said["code"]) == (409, "node_not_free")
            assert "drained" in said["detail"]
            status, said = await check(user, "c2", {"mib": 1})
            assert (status, said["name"], said["nodes"]) == (201, "check", 2)
            spec = (await user.get(f"/v1/jobs/{said['id']}/spec"))["spec"]
            assert spec["placement"]["include"] == ["c2", "c1"]
            assert spec["pool"] == "c"
            asked = await two.expect(PrepareTask)
            assert asked.setup[0] == "/bin/sh"
            status, refused = await check(user, "c1")
            assert (status, refused["code"]) == (409, "node_not_free")
            await user.cancel(said["id"])
        assert (await check(user, "nobody"))[0] == 404
        assert (await check(user, "c1", {"mib": 0}))[0] == 400
        status, said = await check(user, "c1", {"mb": 1})
        assert (status, "mb" in said["detail"]) == (422, True)


async def test_a_key_makes_one_check_however_often_it_is_sent(
    coordinator: CoordinatorProcess,
) -> None:
    """The second time its node is busy: with the very check that it asks for."""
    async with (
        asyncio.timeout(180),
        user_of(coordinator) as user,
        connect(coordinator, "i1") as agent,
    ):
        await agent.hello(inventory=inventory("i1", pool="i"))
        status, first = await check(user, "i1", key="once")
        assert status == 201
        await agent.expect(PrepareTask)
        status, again = await check(user, "i1", key="once")
        assert (status, again["id"]) == (200, first["id"])
        for node, body in (("i1", {"mib": 2}), ("i2", {})):
            status, said = await check(user, node, body, key="once")
            assert (status, said["code"]) == (409, "idempotency_conflict")
            assert f"job {first['id']}" in said["detail"]
        await user.cancel(first["id"])
