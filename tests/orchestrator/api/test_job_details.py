"""A job's specification and environment, a check without a submit, and one node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from muster.protocol.link.control_channel import Inventory
from orchestrator.api.redaction import REDACTED, is_secret
from tests.orchestrator.fake_agent import FakeAgent, connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, User, user_of


@asynccontextmanager
async def user_and_node(coordinator: CoordinatorProcess) -> AsyncIterator[tuple[User, FakeAgent]]:
    async with user_of(coordinator) as user, connect(coordinator, "n1") as agent:
        await agent.hello()
        yield user, agent


async def validate(user: User, **fields: Any) -> tuple[int, Any]:
    async with user.http.post("/v1/jobs:validate", json={**JOB, **fields}) as answer:
        return answer.status, await answer.json()


async def test_validate_shows_what_a_submit_would_make_of_it(
    coordinator: CoordinatorProcess,
) -> None:
    async with user_and_node(coordinator) as (user, _):
        before = (await user.get("/v1/jobs"))["jobs"]
        status, body = await validate(user, name="check", time_limit="90m")
        assert (status, body["fits"], body["unfit"], body["warnings"]) == (200, True, None, [])
        assert (body["spec"]["name"], body["spec"]["nodes"]) == ("check", 1)
        body = (await validate(user, nodes=9))[1]
        assert body["fits"] is False
        assert "needs 9 nodes" in body["unfit"]
        body = (await validate(user, env={"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": "1"}))[1]
        assert [w.partition(" ")[0] for w in body["warnings"]] == ["env.HF_TOKEN"]
        status, problem = await validate(user, nodes=0, nods=1)
        assert (status, [p["field"] for p in problem["problems"]]) == (422, ["nodes", "nods"])
        assert (await user.get("/v1/jobs"))["jobs"] == before


async def test_pool_defaults_are_reported_and_in_the_job(
    coordinator: CoordinatorProcess,
) -> None:
    async with user_and_node(coordinator) as (user, _), connect(coordinator, "l1") as other:
        inventory = Inventory("127.0.0.1", machine_id="l1", cpus=4, pool="lab")
        await other.hello(inventory=inventory)
        body = (await validate(user, pool="lab", time_limit="1h"))[1]
        assert (body["pool_defaults"], body["spec"]["time_limit"]) == (["retry.infra"], "1h")
        job = await user.submit(pool="lab")
        spec = (await user.get(f"/v1/jobs/{job}/spec"))["spec"]
        assert (spec["time_limit"], spec["retry"]["infra"]) == ("1d", 9)
        await user.cancel(job)


async def test_validate_warns_of_nodes_that_are_away(coordinator: CoordinatorProcess) -> None:
    async with user_and_node(coordinator) as (user, agent):
        await agent.socket.close()
        async with asyncio.timeout(180):
            while (await user.get("/v1/nodes/n1"))["link"] == "connected":
                pass
        _, body = await validate(user)
        assert body["fits"] is True
        assert body["warnings"] == [
            "it would wait: 0 nodes of the 1 that it needs are connected now"
        ]


async def test_validate_warns_of_more_ranks_than_gpus(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "g1") as agent, user_of(coordinator) as user:
        inventory = Inventory("127.0.0.1", machine_id="g1", cpus=4, gpus=2, pool="two")
        await agent.hello(inventory=inventory)
        for ranks, warned in ((4, True), (2, False)):
            job = {"run": "x.py", "nodes": 1, "nproc_per_node": ranks, "pool": "two"}
            async with user.http.post("/v1/jobs:validate", json=job) as answer:
                warnings = (await answer.json())["warnings"]
            assert any("the nodes have 2 GPUs at most" in said for said in warnings) is warned


async def test_the_spec_and_the_environment_of_a_job(coordinator: CoordinatorProcess) -> None:
    async with user_and_node(coordinator) as (user, agent):
        env = {"A": "b", "MY_API_KEY": "canary-5512"}
        run = ["/bin/true", "--api-key", "canary-5512"]
        job = await user.submit(env=env, run=run, setup="export HF_TOKEN=canary-5512")
        task = await agent.prepare()
        shown = await user.get(f"/v1/jobs/{job}/env")
        (node,) = shown["nodes"]
        assert (shown["attempt"], node["node"]) == (1, "n1")
        assert (await user.get(f"/v1/jobs/{job}/env?node=n2"))["nodes"] == []
        order = await agent.arrange(task)
        shown = await user.get(f"/v1/jobs/{job}/env")
        (node,) = shown["nodes"]
        assert node["env"] == {**order.env, "MY_API_KEY": REDACTED}
        assert node["origins"].keys() == order.env.keys()
        found = {name: node["origins"][name] for name in ("A", "MASTER_PORT", "PYTHONUNBUFFERED")}
        assert list(found.values()) == ["job file", "muster", "default"]
        assert order.env["MY_API_KEY"] == "canary-5512"
        assert "canary-5512" not in str(shown)
        hidden = {"A": "b", "MY_API_KEY": REDACTED}
        for path in (f"/v1/jobs/{job}/spec", f"/v1/jobs/{job}"):
            spec = (await user.get(path))["spec"]
            assert spec["env"] == hidden
            assert spec["run"] == ["/bin/true", "--api-key", REDACTED]
            assert spec["setup"] == f"export HF_TOKEN={REDACTED}"
        events = await user.get(f"/v1/jobs/{job}/events")
        assert events["events"][0]["fields"]["spec"]["env"] == hidden
        assert "canary-5512" not in str(events)
        assert order.argv == tuple(run)
        await agent.finish(task)
        await user.ended(job)
        async with user.http.post(f"/v1/jobs/{job}/rerun", json={}) as answer:
            assert answer.status == 201, await answer.text()
        again = await agent.arrange(await agent.prepare())
        assert again.argv == tuple(run)
        assert again.env["MY_API_KEY"] == "canary-5512"


async def test_a_job_without_an_attempt_has_no_environment(coordinator: CoordinatorProcess) -> None:
    async with user_and_node(coordinator) as (user, agent):
        await agent.socket.close()
        job = await user.submit()
        none: dict[str, Any] = {"job": job, "attempt": None, "nodes": [], "truncated": False}
        assert await user.get(f"/v1/jobs/{job}/env") == none
        await user.cancel(job)


async def test_the_fabric_of_a_job(coordinator: CoordinatorProcess) -> None:
    async with user_and_node(coordinator) as (user, agent):
        job = await user.submit(rdma="off")
        path = f"/v1/jobs/{job}/fabric"
        shown = await user.get(path)
        assert (shown["job"], shown["rdma"], shown["plan"]) == (job, "off", None)
        task = await agent.prepare()
        order = await agent.arrange(task)
        assert order.env["NCCL_IB_DISABLE"] == "1"
        plan = (await user.get(path))["plan"]
        assert (plan["transport"], plan["rails"]) == ("tcp", [])
        (node,) = plan["nodes"]
        (why,) = [it["why"] for it in node["settings"] if it["name"] == "NCCL_IB_DISABLE"]
        assert (node["node"], why) == ("n1", "rdma: off")
        await agent.finish(task)
        await user.ended(job)


async def test_a_single_node(coordinator: CoordinatorProcess) -> None:
    async with user_and_node(coordinator) as (user, _):
        node = await user.get("/v1/nodes/n1")
        assert (node["name"], node["link"]) == ("n1", "connected")
        assert node.keys() == (await user.get("/v1/nodes"))["nodes"][0].keys()


def test_secrets_are_known_by_their_names() -> None:
    secret = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "wandb_api_key", "TOKEN")
    plain = ("TOKENIZERS_PARALLELISM", "KEY", "MASTER_ADDR", "SECRETARY", "NCCL_DEBUG", "MONKEY")
    assert [name for name in secret + plain if is_secret(name)] == list(secret)


async def test_nodes_are_in_the_order_of_their_numbers(coordinator: CoordinatorProcess) -> None:
    names = ["node-1", "node-2", "node-10"]

    async def nodes_of(user: User) -> list[Any]:
        nodes: list[Any] = (await user.get("/v1/nodes"))["nodes"]
        return nodes

    async with user_of(coordinator) as user:
        for name in reversed(names):
            async with connect(coordinator, name) as agent:
                await agent.hello()
        async with asyncio.timeout(180):
            while any(it["link"] == "connected" for it in await nodes_of(user)):
                pass
        found = [it["name"] for it in await nodes_of(user)]
        assert [name for name in found if name in names] == names
