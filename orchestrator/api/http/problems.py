"""Errors of requests as problem+json (RFC 9457), with a stable code and a hint."""

import re
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from muster.http.views import FieldProblem, Problem
from orchestrator.core.engine.decide import VERSION

CONTENT_TYPE: Final = "application/problem+json"
# Beginnings of aiohttp's messages, and ours for the same.
_UNREADABLE: Final = (
    (
        "Invalid method",
        "the request does not begin with a method of HTTP",
        "the API knows GET, POST and PATCH",
    ),
    (
        "Received HTTPS",
        "TLS was spoken where there is none",
        "call http://, or set TLS for the coordinator",
    ),
    ("Too many headers", "the request has too many headers", "send fewer"),
    ("Duplicate '", "a header that may be there once is there twice", "send it once"),
    (
        "Transfer-Encoding can't",
        "the request has both Transfer-Encoding and Content-Length",
        "send one of them",
    ),
    ("Invalid character in Content-Length", "Content-Length is no number", "send the bytes' count"),
    ("Invalid char in url", "the URL has a character that no URL has", "quote it as %XX"),
    (
        "Invalid header",
        "a header cannot be read",
        "write `Name: value`, without control characters",
    ),
)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ApiError(Exception):
    """A request that fails. Raised anywhere below the middlewares, which answer it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        hint: str = "",
        *,
        problems: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.problems = tuple(problems)
        self.headers = headers


def bad_field(name: str, message: str, value: str = "") -> ApiError:
    """Error for one unusable field of a body."""
    problem = FieldProblem(name, value, message, "")
    return ApiError(422, "bad_field", f"{name} {message}", problems=[problem])


def problem_response(error: ApiError, request_id: str) -> web.Response:
    response = web.Response(
        status=error.status,
        body=_body(error, request_id),
        content_type=CONTENT_TYPE,
        headers=error.headers,
    )
    response.headers.update(common_headers(request_id))
    if response.headers.get("Connection") == "close":
        response.force_close()
    return response


def problem_bytes(error: ApiError) -> bytes:
    """Return a complete response, for a connection without a valid request. It is closed then."""
    request_id = new_request_id()
    body = _body(error, request_id)
    headers = {
        **common_headers(request_id),
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    phrase = HTTPStatus(error.status).phrase
    return f"HTTP/1.1 {error.status} {phrase}\r\n{head}\r\n".encode() + body


def common_headers(request_id: str) -> dict[str, str]:
    """Return the headers that every response has."""
    return {
        "Server": f"muster/{VERSION}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'self'",
        "Cache-Control": "no-store",
        "X-Request-Id": request_id,
    }


def new_request_id() -> str:
    return secrets.token_hex(8)


def request_id_of(request: web.Request) -> str:
    """Return the caller's `X-Request-Id` if it is a word, else a new id."""
    given = request.headers.getall("X-Request-Id", [])
    if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]):
        return given[0]
    return new_request_id()


def internal_error() -> ApiError:
    return ApiError(
        500,
        "internal",
        "internal error of the coordinator; its log has the details",
        "search its log for the request_id of this answer",
    )


def unreadable(error: BaseException | None) -> ApiError:
    """Return the error for an unparsable request. aiohttp's message would repeat its content."""
    if isinstance(error, LineTooLong):
        return ApiError(
            431,
            "head_too_large",
            "the request line or a header is too long",
            "shorten the URL or the headers",
        )
    said = str(getattr(error, "message", ""))
    for begins, detail, hint in _UNREADABLE:
        if said.startswith(begins):
            return ApiError(400, "bad_request", detail, hint)
    return ApiError(
        400, "bad_request", "the request is not HTTP/1.1", "speak HTTP, or TLS where it is set"
    )


def _body(error: ApiError, request_id: str) -> bytes:
    problem = Problem(
        type=f"urn:muster:problem:{error.code}",
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        request_id=request_id,
        problems=error.problems,
    )
    return msgspec.json.encode(problem)


def no_such_route(path: str) -> ApiError:
    """The answer where nothing is served."""
    return ApiError(404, "no_such_route", f"there is nothing at {path}", "the API is under /v1")


def from_aiohttp(error: web.HTTPException, request: web.Request) -> ApiError:
    """Translate aiohttp's own errors (no such route, wrong method, body too large)."""
    match error:
        case web.HTTPNotFound():
            return no_such_route(request.path)
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                405,
                "method_not_allowed",
                f"{request.method} is not allowed on {request.path}",
                f"possible: {allowed}",
                headers={"Allow": allowed},
            )
        case web.HTTPRequestEntityTooLarge():
            return ApiError(
                413,
                "body_too_large",
                f"the body is larger than {request.client_max_size} bytes",
                "a job is a short text: keep code and data in files that the nodes can read",
            )
        case _:
            return ApiError(error.status, "http_error", error.reason)
