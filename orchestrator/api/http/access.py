"""Access control: every route declares its access; anything else is closed."""

import math
from collections.abc import Iterable
from typing import Final, assert_never

from aiohttp import web

from muster.protocol.tokens import TokenClass, TokenRecord
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.route import Access, Route
from orchestrator.api.http.tokens import TokenStore

TOKEN: Final = web.RequestKey("token", TokenRecord)


class AccessTable:
    """The access of each registered (method, path pattern)."""

    def __init__(
        self, routes: Iterable[Route], tokens: TokenStore, *, refusals_per_s: float
    ) -> None:
        self._routes = {(route.method, route.path): route for route in routes}
        self._tokens = tokens
        self._refusals = RateLimit(refusals_per_s)

    def route(self, request: web.Request) -> Route | None:
        """Return the route of a request, or None if there is no such path or method."""
        resource = request.match_info.route.resource
        return None if resource is None else self._routes.get((request.method, resource.canonical))

    def check(self, request: web.Request) -> None:
        """Let the request pass, with its token at `TOKEN`. Raises ApiError (401, 403, 429).

        Unknown paths are closed like any other, so that unauthorized callers cannot probe for
        routes.
        """
        route = self.route(request)
        needed = Access.ADMIN if route is None else route.access
        if needed is Access.OPEN:
            return
        record = self._tokens.find(bearer(request))
        if record is None:
            wait_s = self._refusals.take(request.remote, request.loop.time())
            if wait_s:
                raise ApiError(
                    429,
                    "too_many_refusals",
                    f"too many requests without a good token from {request.remote}",
                    "check the token before the next request",
                    headers={"Retry-After": str(math.ceil(wait_s))},
                )
            raise _unauthorized(
                "the token is missing, wrong or revoked",
                "send the header `Authorization: Bearer muster_...`",
            )
        why = self._tokens.why_not(record)
        if why:
            raise _unauthorized(why, "ask whoever runs the coordinator for a new one")
        match needed:
            case Access.ADMIN:
                class_ = TokenClass.ADMIN
            case Access.JOIN:
                class_ = TokenClass.JOIN
            case _:
                assert_never(needed)
        if record.class_ is not class_:
            raise ApiError(
                403,
                "forbidden",
                f"a token of class {record.class_.value} is not allowed here",
                f"use a token of class {class_.value}",
            )
        request[TOKEN] = record


def _unauthorized(detail: str, hint: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, "unauthorized", detail, hint, headers=headers)


def bearer(request: web.Request) -> str:
    """Return the bearer token of a request; empty if it has none or several."""
    headers = request.headers.getall("Authorization", [])
    if len(headers) != 1:
        return ""
    scheme, _, token = headers[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
