"""Access to every route of the real router, with every kind of token."""

import json
from typing import Any

import aiohttp
import pytest

from orchestrator.api.http.route import Route, as_text
from orchestrator.api.nodes import NodesApi
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.rights.rules import Action
from tests.orchestrator.api.router import routes
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess, add_token, set_user
from tests.orchestrator.user import JOB

ROUTES = routes()
UNKNOWN = [("GET", "/"), ("GET", "/v1"), ("POST", "/v2/jobs"), ("GET", "/v1/jobs/1/secrets")]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
JOIN_ROUTES = {
    ("GET", "/v1/agent"),
    ("GET", "/v1/agent/logs"),
    ("GET", "/v1/agent/tasks/{id}/bundle"),
    ("POST", "/v1/agent/tasks/{id}/blobs"),
    ("POST", "/v1/agent/tasks/{id}/peers"),
    ("POST", "/v1/agent/certificate"),
}
OPEN_ROUTES = {(method, path) for method in ("GET", "HEAD") for path in ("/healthz", "/readyz")} | {
    ("GET", "/v1/ca"),
    ("GET", "/v1/install.sh"),
    ("GET", "/v1/wheels/{id}"),
    ("POST", "/v1/join"),
}


def bad_tokens(coordinator: CoordinatorProcess) -> list[dict[str, str]]:
    admin = coordinator.admin
    return [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": admin},
        {"Authorization": f"Basic {admin}"},
        {"Authorization": f"Bearer {admin[:-1]}{'a' if admin[-1] != 'a' else 'b'}"},
        {"Authorization": f"Bearer {admin}x"},
        {"Authorization": f"Bearer {admin.replace('_admin_', '_join_')}"},
        {"Authorization": f"Bearer {coordinator.join.replace('_join_', '_admin_', 1)}"},
        {"Authorization": f"Bearer {admin.replace('admin1', 'admin2')}"},
        {"Authorization": "Bearer muster_admin_admin1_" + "ä" * 43},
    ]


async def ask(coordinator: CoordinatorProcess, method: str, path: str, headers: Any) -> int:
    path = path.replace("{id}", "1") + ("?timeout_s=0" if path.endswith("/wait") else "")
    async with (
        aiohttp.ClientSession(coordinator.url) as http,
        http.request(method, path, headers=headers) as answer,
    ):
        if answer.status >= 400 and method != "HEAD":
            problem = json.loads(await answer.text())
            assert answer.content_type == "application/problem+json"
            assert problem["status"] == answer.status
            assert problem["request_id"] == answer.headers["X-Request-Id"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"] == f"muster/{VERSION}"
        if answer.status == 405:
            assert answer.headers["Allow"]
        return answer.status


# The least role for which a route opens, with a job of one's own where the path names one. Said
# here once more, independently of the product.
OPERATORS = {("GET", "/v1/join")} | {
    ("POST", f"/v1/nodes/{{id}}/{verb}")
    for verb in ("drain", "resume", "remove", "lost", "accept", "revoke")
}
USERS = {
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs:validate"),
    ("POST", "/v1/blobs"),
    ("POST", "/v1/blobs:missing"),
    ("GET", "/v1/bundles/{id}"),
    ("PUT", "/v1/bundles/{id}"),
    ("POST", "/v1/nodes/{id}/check"),
    ("PATCH", "/v1/jobs/{id}"),
    ("POST", "/v1/tokens/{id}/revoke"),
    *(("POST", f"/v1/jobs/{{id}}/{verb}") for verb in ("cancel", "signal", "rerun")),
}
# Routes for the job of another user.
SHOWN = {("GET", "/v1/jobs/{id}/wait")}
ADMINS = {("POST", "/v1/jobs/{id}/rerun")}
ADMINS_ALONE = {
    ("GET", "/v1/audit"),
    ("GET", "/v1/users"),
    ("POST", "/v1/users"),
    ("PATCH", "/v1/users/{id}"),
    ("POST", "/v1/users/{id}/disable"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/join/secrets"),
    ("POST", "/v1/join/secrets/{id}/revoke"),
}
# Another's is answered as if there were none.
HIDDEN = {"/v1/tokens/{id}/revoke"}
ROLES = ("viewer", "user", "operator", "admin")


def role_of(route: tuple[str, str]) -> str:
    if route in ADMINS_ALONE:
        return "admin"
    return "operator" if route in OPERATORS else "user" if route in USERS else "viewer"


def role_for_another(route: tuple[str, str]) -> str:
    """Return the least role for a route, if the job or token in its path is of someone else."""
    if route[1] in HIDDEN:
        return "admin"
    if not route[1].startswith("/v1/jobs/{id}") or route in SHOWN:
        return role_of(route)
    return "admin" if route in ADMINS else "operator"


async def test_each_route_opens_to_its_class_of_token_and_to_no_other(
    coordinator: CoordinatorProcess,
) -> None:
    for method, path in ROUTES:
        of_join, is_open = (method, path) in JOIN_ROUTES, (method, path) in OPEN_ROUTES
        for headers in bad_tokens(coordinator):
            status = await ask(coordinator, method, path, headers)
            assert (status == 401) is not is_open, (method, path, headers)
        admin = await ask(coordinator, method, path, coordinator.headers())
        join = await ask(coordinator, method, path, coordinator.headers(coordinator.join))
        assert (admin == 403) is of_join, (method, path, admin)
        assert (join == 403) is not (of_join or is_open), (method, path, join)
        assert 401 not in (admin, join)


async def test_each_route_with_each_role_and_owner(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "n1") as agent:
        await agent.hello()
    ann = add_token(coordinator, "ann1", "user", ["lab"])
    others = {role: add_token(coordinator, f"{role}2", role, ["lab"]) for role in ROLES}
    async with aiohttp.ClientSession(coordinator.url) as http:
        for method, pattern in ROUTES:
            if (method, pattern) in JOIN_ROUTES:
                continue
            for role, token in others.items():
                if pattern.startswith("/v1/tokens/{id}"):
                    path = pattern.replace("{id}", token_id(add_token(coordinator, "ann1")))
                else:
                    path = pattern.replace("{id}", await new_job(http, coordinator.headers(ann)))
                least = role_for_another((method, pattern))
                status = await ask(coordinator, method, path, coordinator.headers(token))
                refused = 404 if pattern in HIDDEN else 403
                assert (status != refused) is (ROLES.index(role) >= ROLES.index(least)), (
                    path,
                    role,
                )
                assert status not in (401, 500)
                if not pattern.startswith(("/v1/jobs/{id}", "/v1/tokens/{id}")):
                    continue
                if pattern in HIDDEN and status != 404:
                    path = pattern.replace("{id}", token_id(add_token(coordinator, "ann1")))
                set_user(coordinator, "ann1", role=role)
                least = role_of((method, pattern))
                status = await ask(coordinator, method, path, coordinator.headers(ann))
                assert (status in (403, 404)) is (ROLES.index(role) < ROLES.index(least)), path
                set_user(coordinator, "ann1", role="user")


def token_id(text: str) -> str:
    return text.split("_")[2]


async def new_job(http: aiohttp.ClientSession, headers: dict[str, str]) -> str:
    """A job that waits for ever: its only node has gone."""
    async with http.post("/v1/jobs", json=JOB, headers=headers) as answer:
        body = await answer.json()
        assert answer.status == 201, body
        return str(body["id"])


def test_the_routes_are_those_that_are_known_here() -> None:
    found = set(ROUTES)
    assert found >= OPEN_ROUTES | JOIN_ROUTES
    assert ("POST", "/v1/jobs") in found
    assert found >= OPERATORS | USERS | SHOWN | ADMINS_ALONE
    assert len(found) == 60, "a new route: see that role_of says who may call it"


def test_a_route_needs_an_action_and_an_object_for_its_handler() -> None:
    with pytest.raises(TypeError, match="action"):
        Route("GET", "/x", NodesApi.nodes, summary="x", answers=as_text())  # type: ignore[call-arg]
    route = Route("GET", "/x", NodesApi.nodes, Action.READ_CLUSTER, "x", answers=as_text())
    with pytest.raises(LookupError, match="GET /x"):
        route.bind([object()])


async def test_unknown_routes_need_a_token_too(coordinator: CoordinatorProcess) -> None:
    known = set(ROUTES)
    paths = {path for _, path in known}
    others = [(m, p) for p in sorted(paths) for m in METHODS if (m, p) not in known]
    for method, path in UNKNOWN + others:
        assert await ask(coordinator, method, path, {}) == 401, (method, path)
        join = await ask(coordinator, method, path, coordinator.headers(coordinator.join))
        assert join == 403, (method, path)
        admin = await ask(coordinator, method, path, coordinator.headers())
        assert admin == (404 if (method, path) in UNKNOWN else 405), (method, path)


async def test_no_token_is_ever_logged(coordinator: CoordinatorProcess) -> None:
    for headers in [*bad_tokens(coordinator), coordinator.headers()]:
        await ask(coordinator, "GET", "/v1/jobs", headers)
    assert coordinator.logged("request"), "or this test proves nothing"
    secret = coordinator.admin.rpartition("admin1_")[2]
    assert secret not in json.dumps(coordinator.log)
