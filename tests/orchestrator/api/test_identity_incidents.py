"""Attacks on identity and roles that other systems suffered, tried at a real coordinator."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.process import CoordinatorProcess, add_token
from tests.orchestrator.user import JOB, User, user_of

SECRET = "canary-9127"


@asynccontextmanager
async def acting(coordinator: CoordinatorProcess, token: str) -> AsyncIterator[User]:
    headers = coordinator.headers(token)
    async with aiohttp.ClientSession(coordinator.url, headers=headers) as http:
        yield User(http)


async def status(user: User, method: str, path: str, body: Any = None, **given: Any) -> int:
    async with user.http.request(method, path, json=body, **given) as answer:
        assert SECRET not in await answer.text(), path
        return answer.status


@pytest.mark.parametrize("role", ["viewer", "user", "operator"])
async def test_nobody_raises_their_own_role(coordinator: CoordinatorProcess, role: str) -> None:
    """Slurm CVE-2025-43904: a coordinator of an account could add an administrator."""
    async with acting(coordinator, add_token(coordinator, f"mallory-{role}", role)) as mallory:
        me = f"mallory-{role}"
        for method, path, body in (
            ("PATCH", f"/v1/users/{me}", {"role": "admin"}),
            ("POST", "/v1/users", {"name": "accomplice", "role": "admin"}),
            ("POST", "/v1/users", {"name": me, "role": "admin"}),
            ("POST", "/v1/tokens", {"user": "admin-user"}),
            ("POST", "/v1/tokens", {"user": me, "role": "admin"}),
            ("POST", "/v1/tokens", {"join": True}),
            ("POST", "/v1/users/admin-user/disable", {}),
        ):
            assert await status(mallory, method, path, body) == 403, (method, path, body)
        assert await status(mallory, "POST", "/v1/tokens/admin1/revoke") == 404
        assert (await mallory.get("/v1/version"))["role"] == role


async def test_names_and_ids_are_compared_whole(coordinator: CoordinatorProcess) -> None:
    """Nomad CVE-2025-4922: a policy applied to all names with its prefix. CVE-2025-0937: a wildcard
    showed the events of others."""
    async with connect(coordinator, "n1") as agent:
        await agent.hello()
    robert = add_token(coordinator, "robert")
    async with (
        acting(coordinator, robert) as owner,
        acting(coordinator, add_token(coordinator, "rob")) as rob,
    ):
        job = await owner.submit(env={"PLAIN": SECRET})
        assert await status(rob, "GET", f"/v1/jobs/{job}/env") == 403
        for query in ("user=*", "user=rob*", "user=ro"):
            assert (await rob.get(f"/v1/jobs?{query}"))["jobs"] == []
        for path in ("/v1/jobs/*", f"/v1/jobs/{job}%2F..%2F{job}/env", "/v1/tokens/*/revoke"):
            assert await status(rob, "GET", path) in (404, 405), path
        assert (await rob.get("/v1/tokens?user=robert"))["tokens"] == []
        events = json.dumps(await rob.get("/v1/events?limit=1000"))
        assert SECRET not in events
        assert "robert" not in events
    name, secret = robert.split("_")[2:]
    others = {name[:-1], f"{name}0", name.upper(), "*", "", f"{name}_{name}"}
    for other in others - {name}:  # an id may have no letter
        async with acting(coordinator, f"muster_user_{other}_{secret}") as nobody:
            assert await status(nobody, "GET", "/v1/jobs") == 401, other


async def test_the_token_alone_says_who_asks(coordinator: CoordinatorProcess) -> None:
    """Slurm took gid and user name from the request."""
    async with acting(coordinator, add_token(coordinator, "victor")) as victor:
        assert await status(victor, "POST", "/v1/jobs", {**JOB, "user": "admin-user"}) == 422
        headers = {"X-User": "admin-user", "X-Forwarded-User": "admin-user", "Cookie": "user=ada"}
        assert await status(victor, "GET", "/v1/audit", headers=headers) == 403
    async with aiohttp.ClientSession(coordinator.url) as http:
        nobody = User(http)
        assert await status(nobody, "GET", f"/v1/jobs?token={coordinator.admin}") == 401
        cookie = {"Cookie": f"token={coordinator.admin}"}
        assert await status(nobody, "GET", "/v1/jobs", headers=cookie) == 401
        two = [("Authorization", f"Bearer {each}") for each in (coordinator.admin, "x")]
        assert await status(nobody, "GET", "/v1/jobs", headers=two) == 401


async def test_a_token_that_gives_less_stays_so(coordinator: CoordinatorProcess) -> None:
    async with (
        user_of(coordinator) as admin,
        admin.http.post("/v1/tokens", json={"role": "viewer", "label": "prometheus"}) as answer,
    ):
        token = (await answer.json())["text"]
    async with acting(coordinator, token) as scraper:
        assert (await scraper.get("/v1/version"))["role"] == "viewer"
        assert await status(scraper, "GET", "/metrics") == 200
        for method, path, body in (
            ("POST", "/v1/tokens", {}),
            ("GET", "/v1/users", None),
            ("POST", "/v1/jobs", JOB),
            ("GET", "/v1/audit", None),
        ):
            assert await status(scraper, method, path, body) == 403, path


async def test_streams_end_with_their_user(coordinator: CoordinatorProcess) -> None:
    """Nomad GH-15013: an event stream went on after its token had expired."""
    async with connect(coordinator, "n1") as agent:
        await agent.hello()
    async with (
        user_of(coordinator) as admin,
        acting(coordinator, add_token(coordinator, "leaver")) as leaver,
    ):
        job = await leaver.submit()
        events = await leaver.http.get("/v1/events?follow=1")
        logs = await leaver.http.get(f"/v1/jobs/{job}/logs?follow=1")
        assert (events.status, logs.status) == (200, 200)
        assert await status(admin, "POST", "/v1/users/leaver/disable", {}) == 200
        assert await status(leaver, "GET", "/v1/jobs") == 401
        async with asyncio.timeout(DEADLINE_S):
            for stream in (events, logs):
                with pytest.raises(aiohttp.ClientError):
                    await stream.read()
        assert (await admin.get(f"/v1/jobs/{job}"))["state"] == "QUEUED"
        assert await status(admin, "POST", "/v1/users/leaver/disable", {"end_jobs": True}) == 200
        assert (await admin.get(f"/v1/jobs/{job}"))["state"] == "CANCELLED"
        assert await status(admin, "PATCH", "/v1/users/leaver", {"enable": True}) == 200
        assert await status(leaver, "GET", "/v1/jobs") == 200


@pytest.mark.parametrize("gone", ["user", "token"])
async def test_a_submit_on_its_way_leaves_no_job(
    coordinator: CoordinatorProcess, gone: str
) -> None:
    async with connect(coordinator, "n1") as agent:
        await agent.hello()
    async with (
        asyncio.timeout(DEADLINE_S),
        user_of(coordinator) as admin,
        acting(coordinator, token := add_token(coordinator, name := f"quitter-{gone}")) as quitter,
    ):

        async def body() -> AsyncIterator[bytes]:
            # Sent only once the coordinator has let the request pass.
            if gone == "user":
                end = {"end_jobs": True}
                assert await status(admin, "POST", f"/v1/users/{name}/disable", end) == 200
            else:
                revoke = f"/v1/tokens/{token.split('_')[2]}/revoke"
                assert await status(admin, "POST", revoke, {}) == 200
            yield json.dumps(JOB).encode()

        headers = {"Content-Type": "application/json"}
        try:
            submit = quitter.http.post("/v1/jobs", data=body(), headers=headers, expect100=True)
            async with submit as answer:
                assert answer.status == 401, await answer.text()
        except aiohttp.ClientConnectionError:
            pass  # the look at open requests was faster
        assert (await admin.get(f"/v1/jobs?user={name}"))["jobs"] == []


async def test_events_about_people_are_for_admins(coordinator: CoordinatorProcess) -> None:
    token = add_token(coordinator, "newcomer", "operator")
    async with user_of(coordinator) as admin, acting(coordinator, token) as operator:
        kinds: list[set[str]] = []
        for user in (admin, operator):
            after, found = 0, []
            while page := (await user.get(f"/v1/events?after={after}"))["events"]:
                found += page
                after = page[-1]["seq"]
            assert "sha256" not in json.dumps(found)
            kinds.append({event["kind"] for event in found})
    assert kinds[0] >= {"TokensImported", "UserAdded", "TokenCreated"}
    assert not {kind for kind in kinds[1] if "User" in kind or "Token" in kind}


async def test_no_user_has_a_name_that_breaks_lines_or_is_the_coordinators_own(
    coordinator: CoordinatorProcess,
) -> None:
    """Drains and holds of `muster` are the coordinator's."""
    async with acting(coordinator, coordinator.admin) as admin:
        for name in ("x\n", "x\ny", "", "muster", "Muster"):
            refused = await status(admin, "POST", "/v1/users", {"name": name})
            assert refused in (400, 422), name
        given = {"name": "xavier", "teams": ["lab\n"]}
        assert await status(admin, "POST", "/v1/users", given) == 400
