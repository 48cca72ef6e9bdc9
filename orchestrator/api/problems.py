"""Every failure of a request as problem+json (RFC 9457), with a stable code and what to do next."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from muster.protocol.http import FieldProblem, Problem

CONTENT_TYPE: Final = "application/problem+json"


class ApiError(Exception):
    """A request that cannot be met. Raised anywhere below the middlewares, answered by them."""

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


def bad_field(name: str, message: str) -> ApiError:
    """One field of a body that cannot be used."""
    problem = FieldProblem(name, "", message, "")
    return ApiError(422, "bad_field", f"{name} {message}", problems=[problem])


def problem_response(error: ApiError, request_id: str) -> web.Response:
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
    return web.Response(
        status=error.status,
        body=msgspec.json.encode(problem),
        content_type=CONTENT_TYPE,
        headers=error.headers,
    )


def from_aiohttp(error: web.HTTPException, request: web.Request) -> ApiError:
    """What aiohttp itself says (no such route, wrong method, body too large), in our words."""
    match error:
        case web.HTTPNotFound():
            return ApiError(
                404, "no_such_route", f"there is nothing at {request.path}", "the API is under /v1"
            )
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                405,
                "method_not_allowed",
                f"{request.method} is not possible on {request.path}",
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
