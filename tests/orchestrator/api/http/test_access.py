"""Who may call what: every route of the real router, with every kind of token."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
import structlog.testing

from muster.daemon.clock import SystemClock
from muster.daemon.errors import ConfigError
from muster.protocol.instant import Instant
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.route import Access, Route, as_text
from orchestrator.api.http.tokens import TokenStore
from orchestrator.api.nodes import NodesApi
from orchestrator.core.engine.decide import VERSION
from tests.orchestrator.api.router import routes
from tests.orchestrator.process import CoordinatorProcess, token_file

ROUTES = routes()
UNKNOWN = [("GET", "/"), ("GET", "/v1"), ("POST", "/v2/jobs"), ("GET", "/v1/jobs/1/secrets")]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
JOIN_ROUTES = {("GET", "/v1/agent"), ("GET", "/v1/agent/logs")}
OPEN_ROUTES = {(method, path) for method in ("GET", "HEAD") for path in ("/healthz", "/readyz")}


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
    path = path.replace("{id}", "1")
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


async def test_each_route_opens_to_its_class_of_token_and_to_no_other(
    coordinator: CoordinatorProcess,
) -> None:
    for method, path in ROUTES:
        allowed = access_of(method, path)
        for headers in bad_tokens(coordinator):
            status = await ask(coordinator, method, path, headers)
            assert (status == 401) == (allowed is not Access.OPEN), (method, path, headers)
        admin = await ask(coordinator, method, path, coordinator.headers())
        join = await ask(coordinator, method, path, coordinator.headers(coordinator.join))
        assert (admin == 403) == (allowed is Access.JOIN), (method, path, admin)
        assert (join == 403) == (allowed is Access.ADMIN), (method, path, join)
        assert 401 not in (admin, join)


def access_of(method: str, path: str) -> Access:
    """What a route is to be, said here once more and independently of the product."""
    if (method, path) in OPEN_ROUTES:
        return Access.OPEN
    return Access.JOIN if (method, path) in JOIN_ROUTES else Access.ADMIN


def test_the_routes_are_those_that_are_known_here() -> None:
    found = set(ROUTES)
    assert found >= OPEN_ROUTES | JOIN_ROUTES
    assert ("POST", "/v1/jobs") in found
    assert len(found) == 35, "a new route: see that access_of says who may call it"


def test_a_route_needs_an_access_rule_and_an_object_for_its_handler() -> None:
    with pytest.raises(TypeError, match="access"):
        Route("GET", "/x", NodesApi.nodes, summary="x", answers=as_text())  # type: ignore[call-arg]
    route = Route("GET", "/x", NodesApi.nodes, Access.ADMIN, "x", answers=as_text())
    with pytest.raises(LookupError, match="GET /x"):
        route.bind([object()])


async def test_what_does_not_exist_is_closed_as_well(coordinator: CoordinatorProcess) -> None:
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
    secret = coordinator.admin.rpartition("admin1_")[2]
    assert secret not in json.dumps(coordinator.log)
    assert coordinator.events("request"), "or this test proves nothing"


class Stopped:
    """A clock at which no second ever passes."""

    def now(self) -> Instant:
        return Instant(0.0, 0.0)


class TestTokensFile:
    def test_a_revoked_token_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        tokens = token_file(path)
        store = TokenStore(path, SystemClock())
        assert store.find(tokens[TokenClass.ADMIN]) is not None
        path.write_text('{"tokens": []}')
        store._looked_at = 0.0
        assert store.find(tokens[TokenClass.ADMIN]) is None

    def test_a_token_that_was_made_just_now_is_good_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        tokens = token_file(path)
        made = path.read_text()
        path.write_text('{"tokens": []}')
        store = TokenStore(path, Stopped())
        path.write_text(made)
        assert store.find(tokens[TokenClass.ADMIN]) is not None

    def test_a_file_that_others_can_read_is_reported_once(self, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        tokens = token_file(path)
        store = TokenStore(path, Stopped())
        path.chmod(0o644)
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                assert store.find(f"{tokens[TokenClass.ADMIN]}0") is None
        assert [line["event"] for line in logged] == ["tokens_unreadable"]

    def test_a_typing_mistake_does_not_cut_everybody_off(self, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        tokens = token_file(path)
        store = TokenStore(path, SystemClock())
        path.write_text("tokens: [")
        store._looked_at = 0.0
        assert store.find(tokens[TokenClass.ADMIN]) is not None

    @pytest.mark.parametrize(
        ("text", "mode", "said"),
        [
            (None, 0o600, "no tokens file"),
            ("tokens: []", 0o644, "chmod 600"),
            ("tokens: 5", 0o600, "not a tokens file"),
            ("tokens: [{id: a}]", 0o600, "missing required field"),
            ("tokens: [{id: a, class: root, sha256: x, user: u}]", 0o600, "Invalid enum value"),
            ("tokens: [{id: a, class: admin, sha256: x, user: u}]", 0o600, "64 hex digits"),
        ],
    )
    def test_one_that_cannot_be_used_says_why(
        self, tmp_path: Path, text: str | None, mode: int, said: str
    ) -> None:
        path = tmp_path / "tokens"
        if text is not None:
            path.write_text(text)
            path.chmod(mode)
        with pytest.raises(ConfigError, match=said):
            TokenStore(path, SystemClock())
