"""Bad input gets problem+json that names the mistake, and never a traceback."""

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from msgspec import inspect

from orchestrator.api.routes import ROUTES
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of

JSON = {"Content-Type": "application/json"}
YAML = {"Content-Type": "application/yaml"}


@pytest.fixture(scope="module", autouse=True)
def first_job(coordinator: CoordinatorProcess) -> None:
    """Job 1, for requests about a job that exists."""

    async def main() -> None:
        async with connect(coordinator, "n1") as agent, user_of(coordinator) as user:
            await agent.hello()
            assert await user.submit() == 1

    asyncio.run(main())


def ask(
    coordinator: CoordinatorProcess,
    method: str,
    path: str,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    async def main() -> tuple[int, dict[str, Any]]:
        given = {**coordinator.headers(), **(headers or {})}
        async with (
            aiohttp.ClientSession(coordinator.url, headers=given) as http,
            http.request(method, path, data=None if data is None else io.BytesIO(data)) as answer,
        ):
            text = await answer.text()
            assert "Traceback" not in text
            assert answer.content_type == "application/problem+json", text
            problem = json.loads(text)
            assert problem["code"]
            assert problem["detail"]
            assert problem["type"] == f"urn:muster:problem:{problem['code']}"
            return answer.status, problem

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "headers", "status", "code"),
    [
        (b"{", JSON, 400, "bad_syntax"),
        (b"", JSON, 400, "bad_syntax"),
        (b"[" * 100_000, JSON, 400, "bad_syntax"),
        (b"a: [", YAML, 400, "bad_syntax"),
        (b"a: " + b"[" * 50_000, YAML, 400, "bad_syntax"),
        (b"\xff\xfe\x00", YAML, 400, "bad_encoding"),
        (b"run: x.py", {}, 415, "unsupported_media_type"),
        (b"run=x", {"Content-Type": "application/x-www-form-urlencoded"}, 415, None),
        (b'{"run": "x.py", "nodes": 0}', JSON, 422, "bad_job"),
        (b"runn: x.py", YAML, 422, "bad_job"),
        (b"x" * (1 << 20) + b"x", YAML, 413, "body_too_large"),
        (b'{"run": "x.py"}', {**JSON, "Idempotency-Key": "x" * 300}, 400, "bad_idempotency_key"),
        (b'{"run": "x.py"}', {**JSON, "Idempotency-Key": "\u00e9"}, 400, "bad_idempotency_key"),
        (b'{"run": "x.py"}', {**JSON, "Idempotency-Key": ""}, 400, "bad_idempotency_key"),
        (b'{"run": "x.py", "nodes": 9}', JSON, 422, "unsatisfiable"),
        (b'{"\\ud800": 1}', JSON, 400, "bad_syntax"),
        (b'{"run": "x.py", "env": {"a\\ud800": "x"}}', JSON, 400, "bad_syntax"),
    ],
)
def test_a_job_that_cannot_be_taken(
    coordinator: CoordinatorProcess,
    data: bytes,
    headers: dict[str, str],
    status: int,
    code: str | None,
) -> None:
    found, problem = ask(coordinator, "POST", "/v1/jobs", data, headers)
    assert (found, problem["code"]) == (status, code or problem["code"])


def test_every_wrong_field_of_a_job_is_named(coordinator: CoordinatorProcess) -> None:
    body = b"run: x.py\nnodes: 0\npriority: high\nnods: 2\n"
    status, problem = ask(coordinator, "POST", "/v1/jobs", body, YAML)
    assert status == 422
    fields = [wrong["field"] for wrong in problem["problems"]]
    assert fields == ["nodes", "priority", "nods"]
    assert "line 2" in problem["problems"][0]["message"]


@pytest.mark.parametrize("job", ["0", "x", "-1", "01", "1.5", "9" * 30, "1%00", "999"])
@pytest.mark.parametrize("rest", ["", "/wait", "/events", "/logs", "/spec", "/env"])
def test_a_job_that_is_not_there(coordinator: CoordinatorProcess, job: str, rest: str) -> None:
    status, problem = ask(coordinator, "GET", f"/v1/jobs/{job}{rest}")
    assert (status, problem["code"]) == (404, "unknown_job")


def test_cancelling_a_job_that_is_not_there(coordinator: CoordinatorProcess) -> None:
    status, problem = ask(coordinator, "POST", "/v1/jobs/999/cancel")
    assert (status, problem["code"]) == (404, "unknown_job")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=ten", "limit"),
        ("/v1/jobs?limit=1&limit=2", "limit"),
        ("/v1/jobs?state=DONE", "state"),
        ("/v1/jobs?state=QUEUED,done", "state"),
        ("/v1/jobs?name=" + "x" * 300, "name"),
        ("/v1/jobs?cursor=" + "x" * 300, "cursor"),
        ("/v1/jobs?nope=1", "nope"),
        ("/v1/jobs/1/wait?timeout_s=nan", "timeout_s"),
        ("/v1/jobs/1/wait?timeout_s=-1", "timeout_s"),
        ("/v1/jobs/1/wait?timeout_s=inf", "timeout_s"),
        ("/v1/jobs/1/wait?timeout_s=8e115", "timeout_s"),
        ("/v1/jobs/1/wait?timeout_s=86401", "timeout_s"),
        ("/v1/jobs?limit=9" + "9" * 20, "limit"),
        ("/v1/jobs/1/logs?rank=x", "rank"),
        ("/v1/jobs/1/logs?stream=stdin", "stream"),
        ("/v1/jobs/1/logs?follow=maybe", "follow"),
        ("/v1/jobs/1/logs?format=xml", "format"),
        ("/v1/jobs/1/logs?tail=-1", "tail"),
        ("/v1/jobs/1/logs?attempt=0", "attempt"),
        ("/v1/jobs/1/events?after=x", "after"),
        ("/v1/nodes?x=1", "x"),
    ],
)
def test_a_wrong_parameter_is_named(coordinator: CoordinatorProcess, path: str, names: str) -> None:
    status, problem = ask(coordinator, "GET", path)
    assert (status, problem["code"]) == (400, "bad_query")
    assert problem["problems"][0]["field"] == names


def test_every_number_among_the_parameters_has_both_bounds() -> None:
    found = 0
    for route in ROUTES:
        query = inspect.type_info(route.query)
        assert isinstance(query, inspect.StructType)
        waiting = [(field.name, field.type) for field in query.fields]
        while waiting:
            name, kind = waiting.pop()
            match kind:
                case inspect.Metadata(inner):
                    waiting.append((name, inner))
                case inspect.UnionType(types):
                    waiting += [(name, each) for each in types]
                case inspect.IntType() | inspect.FloatType():
                    assert None not in (kind.ge, kind.le), f"{route.path}: {name}"
                    found += 1
                case _:
                    pass
    assert found > 5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"reason": 5}', 400),
        (b'{"grace_s": -1}', 422),
        (b'{"grace_s": 1e9}', 422),
        (json.dumps({"reason": "x" * 2000}).encode(), 422),
        (b"[" * 100_000, 400),
        (b'{"bogus": true}', 422),
        (b'{"bogus": true', 400),
        (b'{"bogus": ' + b"[" * 100_000, 400),
        (b'{"bogus\xff": 1}', 400),
    ],
)
def test_a_cancel_that_cannot_be_read(
    coordinator: CoordinatorProcess, body: bytes, status: int
) -> None:
    assert ask(coordinator, "POST", "/v1/jobs/1/cancel", body, JSON)[0] == status


@pytest.mark.parametrize(
    ("verb", "body", "hints"),
    [
        ("cancel", {"reson": "x", "bogus": 1}, ["did you mean `reason`?", "there are force, "]),
        ("signal", {"signal": "USR1", "ranks": 0}, ["did you mean `rank`?"]),
        ("signal", {"sginal": "USR1"}, ["did you mean `signal`?"]),
        ("rerun", {"exclud": ["n1"]}, ["did you mean `exclude`?"]),
    ],
)
def test_an_unknown_field_of_a_body_is_named(
    coordinator: CoordinatorProcess, verb: str, body: dict[str, Any], hints: list[str]
) -> None:
    raw = json.dumps(body).encode()
    status, problem = ask(coordinator, "POST", f"/v1/jobs/1/{verb}", raw, JSON)
    assert (status, problem["code"]) == (422, "bad_field")
    found = problem["problems"]
    assert all(wrong["field"] in body for wrong in found)
    assert [wrong["hint"][: len(hint)] for wrong, hint in zip(found, hints, strict=True)] == hints


def test_a_bad_cursor_is_refused(coordinator: CoordinatorProcess) -> None:
    for path in (
        "/v1/jobs/1/logs?cursor=abc",
        "/v1/jobs/1/logs?cursor=h3.0x1.ap9999.1.0.stdout.0.3",
        "/v1/jobs?cursor=17",
        "/v1/jobs?cursor=%F0%9F",
    ):
        status, problem = ask(coordinator, "GET", path)
        assert (status, problem["code"]) == (400, "bad_cursor"), path


def test_a_node_that_is_not_there(coordinator: CoordinatorProcess) -> None:
    for name in ("nowhere", "%00", "x" * 300):
        status, problem = ask(coordinator, "GET", f"/v1/nodes/{name}")
        assert (status, problem["code"]) == (404, "unknown_node")


def test_a_websocket_route_asked_without_a_websocket(coordinator: CoordinatorProcess) -> None:
    headers = coordinator.headers(coordinator.join)
    for path in ("/v1/agent", "/v1/agent/logs"):
        status, _ = ask(coordinator, "GET", path, None, headers)
        assert status == 400
