"""Middleware of every request: request id, limits, access, errors and the log line."""

from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from muster.daemon.errors import DaemonError
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.access import FOREIGN, REFUSED, TOKEN, AccessTable
from orchestrator.api.http.connection_limits import BoundedAnswer, GuardedConnection
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.problems import (
    ApiError,
    common_headers,
    from_aiohttp,
    internal_error,
    problem_response,
    request_id_of,
)
from orchestrator.api.http.request_parsing import parse_query
from orchestrator.api.http.route import QUERY, ROUTE, Handler
from orchestrator.api.http.stream_limits import lasts
from orchestrator.api.http.tokens import NodeCredential
from orchestrator.shell.coordinator import CoordinatorStoppedError
from orchestrator.shell.request_turns import RequestTurns

URL_CHARS_MAX: Final = 4096
PARAMETERS_MAX: Final = 64
_REQUEST_ID: Final = web.RequestKey("request_id", str)
_log = structlog.get_logger("muster.http")

Observer = Callable[[web.Request, int, float], None]
"""Called after each request with its status and its duration in seconds."""


def request_middleware(access: AccessTable, origins: Origins, observer: Observer) -> Middleware:
    turns = RequestTurns()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[_REQUEST_ID] = request_id_of(request)
        connection = request.protocol if isinstance(request.protocol, GuardedConnection) else None
        if connection is not None:
            connection.request_began()
        started = request.loop.time()
        status = 0
        try:
            response = await _answer(request, handler, access, origins, turns, connection)
            status = response.status
        finally:
            if connection is not None:
                connection.request_ended()
            took_s = request.loop.time() - started
            observer(request, status, took_s)
            _log_request(request, status, took_s)
        return response

    return middleware


async def expectation(request: web.Request) -> None:
    """Override the router's answer to `Expect: 100-continue`: unauthorized callers and oversized
    bodies must be refused first (RFC 9110, 10.1.1). `_go_on` sends the 100.
    """


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the common headers to every response (a signal of the application)."""
    response.headers.update(common_headers(request.get(_REQUEST_ID, "")))
    if isinstance(request.protocol, GuardedConnection):
        request.protocol.bounded = isinstance(response, BoundedAnswer)
        request.protocol.patient = not isinstance(response, web.Response | BoundedAnswer)
        if request.protocol.short and not _of_agent(request):
            response.headers["Connection"] = "close"
            response.force_close()


async def _answer(
    request: web.Request,
    handler: Handler,
    access: AccessTable,
    origins: Origins,
    turns: RequestTurns,
    connection: GuardedConnection | None,
) -> web.StreamResponse:
    try:
        _check_size(request)
        origins.check(request)
        route = access.route(request)
        if route is not None:
            request[ROUTE] = route
        access.check(request)
        if connection is not None and TOKEN in request:
            connection.authenticated(request[TOKEN])
        if TOKEN in request and not _of_agent(request):
            await turns.take(request[TOKEN].user)
        if route is not None:
            request[QUERY] = parse_query(request, route.query)
            await access.check_object(request, route)
            if connection is not None and lasts(request):
                connection.refuse_stream()
        await _go_on(request)
        return await handler(request)
    except ApiError as error:
        problem = error
    except web.HTTPException as error:
        problem = from_aiohttp(error, request)
    except CoordinatorStoppedError as error:
        problem = ApiError(503, "stopping", str(error), "try again shortly")
    except DaemonError as error:
        _log.error("request_not_answered", request_id=request[_REQUEST_ID], why=str(error))
        hint = "an operator must look: muster coordinator --check"
        problem = ApiError(503, "journal_unreadable", str(error), hint)
    except ConnectionError:
        raise  # the client has gone
    except Exception:  # noqa: BLE001 - the boundary: one bad request must not end the process
        _log.exception("request_failed", request_id=request[_REQUEST_ID], path=request.path)
        problem = internal_error()
    if request.writer.output_size > 0:
        # A client would read a second answer as part of the first. It retries a truncated one.
        raise ConnectionError("an answer has begun already")
    return problem_response(problem, request[_REQUEST_ID])


def _of_agent(request: web.Request) -> bool:
    return TOKEN in request and request[TOKEN].class_ is TokenClass.JOIN


async def _go_on(request: web.Request) -> None:
    """Send 100 Continue if the client waits for it. Raises HTTPRequestEntityTooLarge."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return
    length, most = request.content_length or 0, request.client_max_size
    if length > most:
        raise web.HTTPRequestEntityTooLarge(most, length)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer itself has not begun


def _check_size(request: web.Request) -> None:
    if len(request.raw_path) > URL_CHARS_MAX:
        raise ApiError(
            414, "url_too_long", f"the URL is longer than {URL_CHARS_MAX} characters", "shorten it"
        )
    if request.rel_url.raw_query_string.count("&") >= PARAMETERS_MAX:
        raise ApiError(
            400, "too_many_parameters", f"the URL has more than {PARAMETERS_MAX} parameters"
        )
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            415,
            "unsupported_encoding",
            "compressed bodies are not supported",
            "send it as it is, without Content-Encoding",
        )


def _log_request(request: web.Request, status: int, took_s: float) -> None:
    refused = request.get(REFUSED)
    token = request.get(TOKEN) or refused
    # Log requests that change something, and reads of others' jobs. Other reads are too many, and
    # so are dials of nodes that wait for an operator: the audit log counts them.
    reads = status < 400 or isinstance(refused, NodeCredential)
    quiet = request.method in {"GET", "HEAD"} and reads and FOREIGN not in request
    (_log.debug if quiet else _log.info)(
        "request",
        method=request.method,
        path=request.path,
        status=status,
        ms=round(took_s * 1000, 1),
        remote=request.remote,
        user=token.user if token is not None else None,
        token_id=token.id if token is not None else None,
        request_id=request[_REQUEST_ID],
    )
