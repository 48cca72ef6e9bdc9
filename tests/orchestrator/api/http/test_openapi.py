"""The schema describes what the server does: made-up requests, by the schema, to a real process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from orchestrator.api.routes import ROUTES
from tests.orchestrator.api.router import routes
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess, add_token
from tests.orchestrator.user import user_of

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
)
QUICK: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": tuple(HealthCheck),
    "database": None,
}
NAMES = sorted((route.method, route.path) for route in ROUTES)
WITHOUT_END = ("/v1/events", "/v1/jobs/{id}/events", "/v1/jobs/{id}/logs")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Start a coordinator with a node and jobs 1 to 3: one ended, one preparing, one waiting."""

    async def fill() -> None:
        async with connect(process, "n1") as agent, user_of(process) as user:
            await agent.hello()
            first = await user.submit(name="first")
            task = await agent.prepare()
            await agent.arrange(task)
            await agent.finish(task)
            await user.ended(first)
            await user.submit(name="second")
            await agent.prepare()
            await user.submit(name="third")

    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(folder).start() as process:
        asyncio.run(fill())
        yield process


@pytest.fixture(scope="module")
def api(busy: CoordinatorProcess) -> Any:
    return schemathesis.openapi.from_url(f"{busy.url}/openapi.json", headers=busy.headers())


def made_up(
    api: Any, busy: CoordinatorProcess, route: tuple[str, str], examples: int, token: str = ""
) -> None:
    """Make requests of one route by its description, and hold the answers to it."""
    method, path = route

    @settings(max_examples=examples, **QUICK)
    @given(case=api[path][method.lower()].as_strategy())
    def ask(case: Any) -> None:
        if path in WITHOUT_END:
            case.query.pop("follow", None)
        if path.endswith("/wait"):
            case.query["timeout_s"] = 0
        if isinstance(case.path_parameters.get("id"), int):
            case.path_parameters["id"] = case.path_parameters["id"] % 5 + 1  # most are no job's
        case.call_and_validate(
            base_url=busy.url, headers=busy.headers(token), checks=list(CHECKS), timeout=30
        )

    ask()


@pytest.mark.parametrize("route", NAMES, ids=" ".join)
def test_requests_that_the_schema_allows_get_the_answers_it_describes(
    route: tuple[str, str], api: Any, busy: CoordinatorProcess
) -> None:
    made_up(api, busy, route, 5)


@pytest.mark.parametrize("role", ["viewer", "user", "operator"])
def test_the_answers_to_each_role_are_as_described(
    role: str, api: Any, busy: CoordinatorProcess
) -> None:
    """To an admin, the other tests make the requests."""
    token = add_token(busy, f"the-{role}", role)
    for route in NAMES:
        made_up(api, busy, route, 2, token)


@pytest.mark.long
@pytest.mark.parametrize("route", NAMES, ids=" ".join)
def test_the_same_with_many_more(
    route: tuple[str, str], api: Any, busy: CoordinatorProcess
) -> None:
    made_up(api, busy, route, 200)


def test_every_route_is_registered_and_nothing_else() -> None:
    assert set(NAMES) == set(routes())


NODE_VERBS = ("check", "drain", "resume", "remove", "lost")


async def test_every_route_is_described_and_nothing_else(busy: CoordinatorProcess) -> None:
    async with user_of(busy) as user:
        document = await user.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert described == set(NAMES)
    for name in ("Cancel", "Change", "Signal", "Rerun"):
        body = document["components"]["schemas"][f"{name}Request"]
        assert body["additionalProperties"] is False
    paths = document["paths"]
    for method, path, status, header in (
        ("post", "/v1/jobs", "201", "Location"),
        ("post", "/v1/jobs/{id}/rerun", "201", "Location"),
        ("get", "/v1/jobs/{id}", "200", "ETag"),
        ("patch", "/v1/jobs/{id}", "200", "ETag"),
    ):
        assert header in paths[path][method]["responses"][status]["headers"]
    refused_when_full = {
        (method, path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "507" in operation["responses"]
    }
    assert refused_when_full == {
        ("post", "/v1/jobs"),
        ("post", "/v1/jobs/{id}/rerun"),
        ("patch", "/v1/jobs/{id}"),
        ("post", "/v1/jobs/{id}/signal"),
        ("post", "/v1/blobs"),
        ("put", "/v1/bundles/{id}"),
        *(("post", f"/v1/nodes/{{id}}/{verb}") for verb in NODE_VERBS),
        ("post", "/v1/users"),
        ("patch", "/v1/users/{id}"),
        ("post", "/v1/users/{id}/disable"),
        ("post", "/v1/tokens"),
        ("post", "/v1/join"),
        ("post", "/v1/join/secrets"),
        ("post", "/v1/nodes/{id}/accept"),
        ("post", "/v1/agent/certificate"),
    }
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(set(names)) == len(names)
    limit = next(
        parameter
        for parameter in document["paths"]["/v1/jobs"]["get"]["parameters"]
        if parameter["name"] == "limit"
    )
    assert limit["schema"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1000,
        "default": 100,
    }
