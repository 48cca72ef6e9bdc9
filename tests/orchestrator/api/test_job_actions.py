"""Holding, changing, signalling and running jobs again over HTTP."""

import asyncio
from typing import Any

import pytest

from muster.protocol.link.control_channel import Inventory, SignalTask
from muster.protocol.states import TaskState
from orchestrator.api.http.rate_limit import BURST_S
from orchestrator.api.job_actions import SETS_MAX, SIGNALS_PER_S
from tests.orchestrator.fake_agent import connect, prepared
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, User, user_of


@pytest.fixture(scope="module")
def cluster(coordinator: CoordinatorProcess) -> CoordinatorProcess:
    """Two nodes are known and away: jobs are taken, and stay queued."""

    async def join() -> None:
        for name in ("v1", "v2"):
            async with connect(coordinator, name) as agent:
                await agent.hello()

    asyncio.run(join())
    return coordinator


async def ask(
    user: User, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    async with user.http.request(method, path, json=body or {}, headers=given) as answer:
        return answer.status, await answer.json()


async def test_hold_and_release(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        path = f"/v1/jobs/{await user.submit()}"
        status, held = await ask(user, "PATCH", path, {"hold": True, "reason": "data"})
        assert (status, held["changed"], held["job"]["state"]) == (200, True, "HELD")
        assert held["job"]["held_by"] == "admin-user"
        assert held["job"]["held_at"].endswith("Z")
        assert (await ask(user, "PATCH", path, {"hold": True}))[1]["changed"] is False
        status, freed = await ask(user, "PATCH", path, {"hold": False})
        assert (status, freed["job"]["state"]) == (200, "QUEUED")
        events = await user.get(f"{path}/events")
        texts = [event["text"] for event in events["events"]]
        assert texts[1:] == ["held by admin-user: data", "released by admin-user"]


async def test_change_what_can_be_changed(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        path = f"/v1/jobs/{await user.submit(time_limit='1h')}"
        wanted = {"priority": 80, "time_limit": "2h", "name": "other"}
        status, changed = await ask(user, "PATCH", path, wanted)
        assert (status, changed["job"]["priority"], changed["job"]["name"]) == (200, 80, "other")
        assert (await user.get(path))["spec"]["time_limit"] == "2h"
        await ask(user, "PATCH", path, {"time_limit": None})
        assert "time_limit" not in (await user.get(path))["spec"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"priority": 101}, 422, "priority"),
        ({"time_limit": "soon"}, 422, "time_limit"),
        ({"nodes": 4}, 422, "muster rerun"),
        ({"prioriti": 4}, 422, "did you mean `priority`"),
        ({"hold": "yes"}, 422, "hold"),
        ({"hold": True, "reason": "x" * 2000}, 422, "reason"),
        ({}, 400, "nothing to change"),
        ([], 400, "body"),
    ],
)
async def test_keys_that_cannot_be_changed_are_named(
    cluster: CoordinatorProcess, body: Any, status: int, words: str
) -> None:
    async with user_of(cluster) as user:
        job = await user.submit()
        async with user.http.patch(f"/v1/jobs/{job}", json=body) as answer:
            text = await answer.text()
            assert answer.status == status, text
            assert words in text


async def test_only_the_job_that_was_looked_at_is_changed(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        path = f"/v1/jobs/{await user.submit()}"
        async with user.http.get(path) as answer:
            seen = answer.headers["ETag"]
        match = {"If-Match": seen}
        async with user.http.patch(path, json={"priority": 60}, headers=match) as answer:
            assert answer.status == 200
            assert answer.headers["ETag"] != seen
        status, problem = await ask(user, "PATCH", path, {"priority": 70}, If_Match=seen)
        assert (status, problem["code"]) == (412, "changed")
        assert (await user.get(path))["priority"] == 60
        status, _ = await ask(user, "PATCH", path, {"priority": 70}, If_Match="*")
        assert status == 200


async def test_each_wrong_state_has_its_own_answer(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        job = await user.submit()
        wrong: tuple[tuple[str, str, dict[str, Any], str], ...] = (
            ("PATCH", f"/v1/jobs/{job}", {"hold": False}, "not_held"),
            ("POST", f"/v1/jobs/{job}/signal", {"signal": "USR1"}, "not_running"),
        )
        for method, path, body, code in wrong:
            status, problem = await ask(user, method, path, body)
            assert (status, problem["code"]) == (409, code)
            assert problem["hint"]
        await user.cancel(job)
        late: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("PATCH", f"/v1/jobs/{job}", {"priority": 1}),
            ("PATCH", f"/v1/jobs/{job}", {"hold": True}),
            ("POST", f"/v1/jobs/{job}/signal", {"signal": 10}),
        )
        for method, path, body in late:
            status, problem = await ask(user, method, path, body)
            assert (status, problem["code"]) == (409, "already_ended")
            assert f"muster rerun {job}" in problem["hint"]
        nowhere: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("PATCH", "", {"priority": 1}),
            ("POST", "/signal", {"signal": "USR1"}),
            ("POST", "/rerun", {}),
        )
        for method, path, body in nowhere:
            status, problem = await ask(user, method, f"/v1/jobs/999999{path}", body)
            assert (status, problem["code"]) == (404, "unknown_job")
        for body in ({"signal": "SIGNOPE"}, {"signal": "USR1", "rank": -1}, {"signal": "KILL"}):
            status, _ = await ask(user, "POST", f"/v1/jobs/{job}/signal", body)
            assert status in (409, 422)


async def test_a_signal_reaches_the_node(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user, connect(cluster, "v3") as agent:
        await agent.hello(inventory=Inventory("127.0.0.1", "machine-v3", pool="own"))
        job = await user.submit(pool="own")
        task = await agent.prepare()
        await agent.arrange(task)
        await agent.gate(task)
        await agent.report(task, TaskState.STARTED, prepared=prepared())
        while (await user.get(f"/v1/jobs/{job}"))["state"] != "RUNNING":
            pass
        status, answer = await ask(user, "POST", f"/v1/jobs/{job}/signal", {"signal": 10})
        assert (status, answer["signal"], answer["nodes"]) == (202, "SIGUSR1", ["v3"])
        said = await agent.expect(SignalTask)
        assert (said.signal, said.number) == ("SIGUSR1", 1)
        for _ in range(2 * int(SIGNALS_PER_S * BURST_S)):
            status, answer = await ask(user, "POST", f"/v1/jobs/{job}/signal", {"signal": 10})
            if status != 202:
                break
        assert (status, answer["code"]) == (429, "too_many_signals")
        await user.cancel(job)


async def test_rerun_is_the_job_as_it_was_submitted_and_what_is_changed(
    cluster: CoordinatorProcess,
) -> None:
    async with user_of(cluster) as user:
        job = await user.submit(name="first", priority=10)
        await ask(user, "PATCH", f"/v1/jobs/{job}", {"priority": 90})
        body = {"set": ["time_limit=2h", "env.LR=1e-5"], "exclude": ["v1"]}
        path = f"/v1/jobs/{job}/rerun"
        status, made = await ask(user, "POST", path, body, Idempotency_Key=f"again-{job}")
        assert (status, made["rerun_of"], made["priority"]) == (201, job, 10)
        spec = (await user.get(f"/v1/jobs/{made['id']}"))["spec"]
        assert (spec["time_limit"], spec["env"]) == ("2h", {"LR": "1e-5"})
        assert spec["placement"] == {"exclude": ["v1"]}
        status, again = await ask(user, "POST", path, body, Idempotency_Key=f"again-{job}")
        assert (status, again["id"]) == (200, made["id"])
        status, problem = await ask(user, "POST", path, {}, Idempotency_Key=f"again-{job}")
        assert (status, problem["code"]) == (409, "idempotency_conflict")


async def test_a_rerun_that_cannot_be_is_refused(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        job = await user.submit(placement={"include": ["v1"]})
        path = f"/v1/jobs/{job}/rerun"
        for body, words in (
            ({"set": ["nodes=0"]}, "nodes"),
            ({"set": ["nodes"]}, "--set"),
            ({"set": ["env.A=1"] * (SETS_MAX + 1)}, "256 is the most"),
            ({"exclude": ["nope"]}, "nope"),
            ({"exclude": ["v1"]}, "placement"),
        ):
            status, problem = await ask(user, "POST", path, body)
            assert status == 422, problem
            assert words in str(problem)


async def test_a_rerun_of_named_nodes_keeps_the_others(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        job = await user.submit(**{**JOB, "placement": {"include": ["v1", "v2"]}})
        _, made = await ask(user, "POST", f"/v1/jobs/{job}/rerun", {"exclude": ["v1"]})
        spec = (await user.get(f"/v1/jobs/{made['id']}"))["spec"]
        assert spec["placement"] == {"include": ["v2"]}


async def test_what_if_questions_are_answered(cluster: CoordinatorProcess) -> None:
    async with user_of(cluster) as user:
        path = f"/v1/jobs/{await user.submit(nodes=2)}"
        found = await user.get(f"{path}/explain?nodes=1&drained=v2,v1&time_limit_s=3600")
        assumed = "if it asked for 1 node and its time limit was 1h and v1, v2 were drained"
        assert found["supposing"] == assumed
        assert found["wanted"] == 1
        codes = {node["node"]: node["reason"]["code"] for node in found["nodes"]}
        assert (codes["v1"], codes["v2"]) == ("drained", "drained")
        there = await user.get(f"{path}/explain")
        assert (there["wanted"], there["supposing"]) == (2, "")
        assert all(node["admin"] == "active" for node in (await user.get("/v1/nodes"))["nodes"])
        for query, code in (
            ("nodes=0", 400),
            ("nodes=4097", 400),
            ("time_limit_s=0", 400),
            ("drained=nobody", 422),
        ):
            async with user.http.get(f"{path}/explain?{query}") as answer:
                assert answer.status == code, await answer.text()
        await ask(user, "POST", f"{path}/cancel")
        async with user.http.get(f"{path}/explain?nodes=1") as answer:
            said = await answer.json()
        assert (answer.status, said["code"]) == (409, "not_waiting")
