"""Every answer, aiohttp's own too: problem+json, an id, the same headers; whose page may ask."""

import pytest

from tests.orchestrator.api.raw import Answer, ask, dial, head, read_answer, until_closed
from tests.orchestrator.process import CoordinatorProcess


def get(coordinator: CoordinatorProcess, path: str, *headers: str) -> Answer:
    return ask(coordinator, head(coordinator, f"GET {path} HTTP/1.1", *headers))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"hello there\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
        b"G\xc3\x84T /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_an_invalid_request_gets_a_problem(coordinator: CoordinatorProcess, data: bytes) -> None:
    answer = ask(coordinator, data)
    assert (answer.status, answer.problem["code"]) == (400, "bad_request")
    assert answer.headers["server"].startswith("muster/")
    assert "hello" not in answer.problem["detail"], "what was sent is not repeated"


@pytest.mark.parametrize(
    ("line", "headers", "words"),
    [
        ("FOO /v1/nodes HTTP/1.1", (), "a method of HTTP"),
        ("GET /v1/nodes HTTP/1.1", tuple(f"X-{n}: 1" for n in range(80)), "too many headers"),
        ("GET /v1/nodes HTTP/1.1", ("Host: a", "Host: b"), "twice"),
        ("POST /v1/jobs HTTP/1.1", ("Content-Length: x",), "Content-Length"),
        ("GET /\x00 HTTP/1.1", (), "URL"),
        ("GET /v1/nodes HTTP/1.1", ("X : 1",), "a header"),
        ("GET /v1/nodes HTTP/9.9", (), "HTTP/1.1"),
    ],
)
def test_an_unreadable_part_is_named(
    coordinator: CoordinatorProcess, line: str, headers: tuple[str, ...], words: str
) -> None:
    problem = ask(coordinator, head(coordinator, line, *headers)).problem
    assert problem["code"] == "bad_request"
    assert words in problem["detail"]
    assert problem["hint"]


@pytest.mark.parametrize(
    ("line", "headers", "status", "code"),
    [
        ("GET /v1/nodes HTTP/1.1", ("X-Long: " + "x" * 9000,), 431, "head_too_large"),
        (f"GET /v1/nodes?{'x' * 9000} HTTP/1.1", (), 431, "head_too_large"),
        (f"GET /v1/nodes?{'x' * 5000} HTTP/1.1", (), 414, "url_too_long"),
        (f"GET /v1/nodes?{'&' * 100} HTTP/1.1", (), 400, "too_many_parameters"),
        ("GET /v1/nodes HTTP/1.1", tuple(f"X-{n}: 1" for n in range(80)), 400, "bad_request"),
        ("GET /nowhere HTTP/1.1", (), 404, "no_such_route"),
        ("DELETE /v1/jobs/1 HTTP/1.1", (), 405, "method_not_allowed"),
        ("PROPFIND /v1/jobs/1 HTTP/1.1", (), 405, "method_not_allowed"),
        ("BREW /v1/jobs/1 HTTP/1.1", (), 400, "bad_request"),
        ("POST /v1/jobs HTTP/1.1", ("Content-Encoding: gzip",), 415, "unsupported_encoding"),
    ],
)
def test_an_oversized_request_gets_a_problem(
    coordinator: CoordinatorProcess, line: str, headers: tuple[str, ...], status: int, code: str
) -> None:
    answer = ask(coordinator, head(coordinator, line, *headers))
    assert (answer.status, answer.problem["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"] == "GET, PATCH"


def test_an_expectation_is_not_answered_before_the_token_is_seen(
    coordinator: CoordinatorProcess,
) -> None:
    line, length = "POST /v1/jobs HTTP/1.1", "Content-Length: 1000000"
    data = head(coordinator, line, "Expect: 100-continue", length, "Authorization: none")
    assert ask(coordinator, data).status == 401


def test_a_body_that_waits_to_be_asked_for_is_asked_for(coordinator: CoordinatorProcess) -> None:
    body = b'{"run": "train.py", "nodes": "many"}'
    line = "POST /v1/jobs:validate HTTP/1.1"
    more = (f"Content-Length: {len(body)}", "Content-Type: application/json")
    with dial(coordinator) as connection:
        connection.sendall(head(coordinator, line, "Expect: 100-continue", *more))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert b"HTTP/1.1 422" in connection.recv(1000)


def test_a_body_that_is_too_large_is_not_asked_for(coordinator: CoordinatorProcess) -> None:
    line = "POST /v1/jobs HTTP/1.1"
    more = ("Content-Length: 100000000", "Content-Type: application/json")
    answer = ask(
        coordinator,
        head(coordinator, line, "Expect: 100-continue", *more),
    )
    assert answer.status == 413


@pytest.mark.parametrize("given", ["abc-1.2_Z", "x" * 64])
def test_the_callers_request_id_is_kept(coordinator: CoordinatorProcess, given: str) -> None:
    answer = get(coordinator, "/nowhere", f"X-Request-Id: {given}")
    assert answer.problem["request_id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\tb", "<script>", "\xe4"])
def test_a_request_id_that_is_no_word_is_replaced(
    coordinator: CoordinatorProcess, given: str
) -> None:
    made = get(coordinator, "/nowhere", f"X-Request-Id: {given}").problem["request_id"]
    assert made != given
    assert len(made) == 16


def test_health_is_reported_without_a_body(coordinator: CoordinatorProcess) -> None:
    """Some load balancers ask so."""
    for path in ("/healthz", "/readyz"):
        with dial(coordinator) as connection:
            connection.sendall(head(coordinator, f"HEAD {path} HTTP/1.1", "Connection: close"))
            top, _, body = until_closed(connection).partition(b"\r\n\r\n")
        assert (top.split()[1], body) == (b"200", b"")


def test_good_answers_have_the_same_headers(coordinator: CoordinatorProcess) -> None:
    headers = get(coordinator, "/v1/nodes").headers
    assert headers["server"].startswith("muster/")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'self'"
    assert len(headers["x-request-id"]) == 16


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7077", 200),
        ("localhost", 200),
        ("LOCALHOST.:1", 200),
        ("[::1]:7077", 200),
        ("10.1.2.3", 200),
        ("muster.test:7077", 200),
        ("evil.example", 421),
        ("localhost.evil.example:7077", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 400),
        ("a b", 400),
        ("localhost@evil.example", 400),
    ],
)
def test_a_page_that_rebinds_its_name_is_refused(
    named: CoordinatorProcess, host: str, status: int
) -> None:
    """Credentials do not help: also with a good token, and on the routes that are open."""
    for path in ("/v1/nodes", "/healthz"):
        assert get(named, path, f"Host: {host}").status == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1:7077/healthz", 200),
        ("http://muster.test/healthz", 200),
        ("http://evil.example/healthz", 421),
        ("https://evil.example:7077/v1/nodes", 421),
        ("//evil.example/v1/nodes", 404),
        ("http://localhost@evil.example/v1/nodes", 400),
        ("http:///v1/nodes", 400),
    ],
)
def test_the_host_of_an_absolute_target_counts_and_not_the_header(
    named: CoordinatorProcess, target: str, status: int
) -> None:
    host = "Host: evil.example" if status == 200 else "Host: muster.test"
    assert get(named, target, host).status == status


def test_http_1_1_without_a_host_is_refused(coordinator: CoordinatorProcess) -> None:
    for line in (b"GET /healthz HTTP/1.1", b"GET /healthz"):
        answer = ask(coordinator, line + b"\r\n\r\n")
        assert answer.status == 400
        assert answer.problem["code"] in ("bad_request", "no_host")
    assert ask(coordinator, b"GET /healthz HTTP/1.0\r\n\r\n").status == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Origin: http://evil.example", 403),
        ("Origin: null", 403),
        ("Origin: https://127.0.0.1", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Sec-Fetch-Site: none", 200),
    ],
)
def test_a_page_of_another_site_is_refused(
    coordinator: CoordinatorProcess, header: str, status: int
) -> None:
    for path in ("/v1/nodes", "/healthz"):
        assert get(coordinator, path, header).status == status


def test_a_page_of_our_own_may_ask(coordinator: CoordinatorProcess) -> None:
    assert get(coordinator, "/v1/nodes", f"Origin: {coordinator.url}").status == 200


@pytest.mark.long
def test_a_head_that_never_ends_ends_the_connection(coordinator: CoordinatorProcess) -> None:
    """With the deadline that is shipped; tests/orchestrator/api/http/test_connection_limits.py has
    the rest."""
    with dial(coordinator) as connection:
        connection.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        answer = read_answer(connection)
        assert (answer.status, answer.problem["code"]) == (408, "request_timeout")
        assert until_closed(connection) == b""


def test_no_frame_is_read_of_a_websocket_before_its_token(coordinator: CoordinatorProcess) -> None:
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
    )
    for token in ("Authorization: none", f"Authorization: Bearer {coordinator.admin}"):
        request = head(coordinator, "GET /v1/agent HTTP/1.1", *upgrade, token)
        with dial(coordinator) as connection:
            connection.sendall(request + b"\x82\xff" + (1 << 20).to_bytes(8, "big"))
            assert read_answer(connection).status in (401, 403)
            connection.sendall(b"\0" * 8192)
            assert b"101" not in until_closed(connection)[:20]
