"""The web application: its routes, who may use each, and what surrounds every request."""

import secrets
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from orchestrator.api.access import TOKEN, Access, AccessTable, Handler, Route
from orchestrator.api.cluster import ClusterApi
from orchestrator.api.job_details import JobDetailsApi
from orchestrator.api.job_list import JobListApi
from orchestrator.api.jobs import JobsApi
from orchestrator.api.logs import LogsApi
from orchestrator.api.problems import ApiError, from_aiohttp, problem_response
from orchestrator.api.token_file import TokenStore
from orchestrator.core.decide import VERSION
from orchestrator.shell.agents import AgentSessions
from orchestrator.shell.coordinator import Coordinator, CoordinatorStoppedError
from orchestrator.shell.logs.connection import LogConnections
from orchestrator.shell.logs.store import LogStore

_REQUEST_ID: Final = web.RequestKey("request_id", str)
_log = structlog.get_logger("muster.http")


def make_app(
    *,
    coordinator: Coordinator,
    agents: AgentSessions,
    log_connections: LogConnections,
    log_store: LogStore,
    tokens: TokenStore,
    body_bytes_max: int,
    queued_jobs_max: int,
) -> web.Application:
    """The application, complete; nothing can be reached that is not in `routes`."""
    jobs = JobsApi(coordinator, queued_max=queued_jobs_max)
    job_list, details = JobListApi(coordinator), JobDetailsApi(coordinator)
    logs = LogsApi(coordinator, log_store)
    cluster = ClusterApi(coordinator)
    admin = Access.ADMIN
    routes = [
        Route("GET", "/healthz", cluster.healthz, Access.OPEN),
        Route("GET", "/readyz", cluster.readyz, Access.OPEN),
        Route("GET", "/v1/version", cluster.version, admin),
        Route("GET", "/v1/nodes", cluster.nodes, admin),
        Route("GET", "/v1/nodes/{id}", cluster.node, admin),
        Route("POST", "/v1/jobs", jobs.submit, admin),
        Route("POST", "/v1/jobs:validate", details.validate, admin),
        Route("GET", "/v1/jobs", job_list.list, admin),
        Route("GET", "/v1/jobs/{id}", jobs.show, admin),
        Route("GET", "/v1/jobs/{id}/spec", details.spec, admin),
        Route("GET", "/v1/jobs/{id}/env", details.env, admin),
        Route("GET", "/v1/jobs/{id}/wait", jobs.wait, admin),
        Route("POST", "/v1/jobs/{id}/cancel", jobs.cancel, admin),
        Route("GET", "/v1/jobs/{id}/events", jobs.events, admin),
        Route("GET", "/v1/jobs/{id}/logs", logs.read, admin),
        Route("GET", "/v1/agent", agents.serve, Access.JOIN),
        Route("GET", "/v1/agent/logs", log_connections.serve, Access.JOIN),
    ]
    app = web.Application(
        middlewares=[_surround(AccessTable(routes, tokens))], client_max_size=body_bytes_max
    )
    for route in routes:
        app.router.add_route(route.method, route.path, route.handler)
    app.on_response_prepare.append(_add_headers)
    return app


def _surround(access: AccessTable) -> Middleware:
    """What happens around each request: its id, its right, its failure, its line in the log."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[_REQUEST_ID] = secrets.token_hex(8)
        started = request.loop.time()
        status = 0
        try:
            response = await _answer(request, handler, access)
            status = response.status
        finally:
            token = request.get(TOKEN)
            # What changes something is worth a line; questions are many.
            quiet = request.method in {"GET", "HEAD"} and status < 400
            (_log.debug if quiet else _log.info)(
                "request",
                method=request.method,
                path=request.path,
                status=status,
                ms=round((request.loop.time() - started) * 1000, 1),
                remote=request.remote,
                user=token.user if token is not None else None,
                token_id=token.id if token is not None else None,
                request_id=request[_REQUEST_ID],
            )
        return response

    return middleware


async def _answer(
    request: web.Request, handler: Handler, access: AccessTable
) -> web.StreamResponse:
    try:
        access.check(request)
        return await handler(request)
    except ApiError as error:
        problem = error
    except web.HTTPException as error:
        problem = from_aiohttp(error, request)
    except CoordinatorStoppedError as error:
        problem = ApiError(503, "stopping", str(error), "try again in a moment")
    except ConnectionError:
        raise  # nobody is there to answer
    except Exception:  # noqa: BLE001 - the boundary: one bad request must not end the process
        _log.exception("request_failed", request_id=request[_REQUEST_ID], path=request.path)
        problem = ApiError(
            500,
            "internal",
            "the coordinator made a mistake; its log has the details",
            f"look for request_id {request[_REQUEST_ID]}",
        )
    return problem_response(problem, request[_REQUEST_ID])


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = f"muster/{VERSION}"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Request-Id"] = request.get(_REQUEST_ID, "")
