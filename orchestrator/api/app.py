"""The web application: its routes, their access rules, and the middleware of every request."""

from typing import Final

from aiohttp import web

from orchestrator.api.events import EventsApi
from orchestrator.api.http.access import Access, AccessTable, Route
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.middleware import add_headers, expectation, request_middleware
from orchestrator.api.http.openapi import SchemaApi
from orchestrator.api.http.stream_limits import StreamLimits
from orchestrator.api.http.stream_revocation import StreamRevocation
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.http.tokens import TokenStore
from orchestrator.api.job_actions import JobActionsApi
from orchestrator.api.job_details import JobDetailsApi
from orchestrator.api.job_list import JobListApi
from orchestrator.api.jobs import JobsApi
from orchestrator.api.logs import LogsApi
from orchestrator.api.metrics import MetricsApi
from orchestrator.api.node_actions import NodeActionsApi
from orchestrator.api.node_check import NodeCheckApi
from orchestrator.api.nodes import NodesApi
from orchestrator.config import Limits
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.ingest import LogIngest
from orchestrator.shell.logs.store import LogStore

OPEN_REQUESTS: Final = web.AppKey("open_requests", StreamRevocation)


def make_app(
    *,
    coordinator: Coordinator,
    agents: AgentSessions,
    log_connections: LogIngest,
    log_store: LogStore,
    tokens: TokenStore,
    origins: Origins,
    limits: Limits,
    rules: SubmitRules,
) -> web.Application:
    """Build the application. Only routes in `routes` are reachable."""
    parsers = BulkReads()
    jobs = JobsApi(
        coordinator,
        queued_max=limits.queued_jobs_max,
        submits_per_s=limits.submits_per_s,
        rules=rules,
        parsers=parsers,
    )
    job_list, details = JobListApi(coordinator), JobDetailsApi(coordinator, jobs)
    verbs, node_verbs = JobActionsApi(coordinator, jobs), NodeActionsApi(coordinator)
    node_check = NodeCheckApi(coordinator, jobs, rules)
    reads = BulkReads()
    logs = LogsApi(coordinator, log_store, reads)
    events = EventsApi(coordinator, reads)
    cluster = NodesApi(coordinator)
    metrics = MetricsApi(coordinator, agents, log_connections, log_store)
    schema = SchemaApi()
    admin = Access.ADMIN
    routes = [
        Route("GET", "/openapi.json", schema.show, admin),
        Route("GET", "/healthz", cluster.healthz, Access.OPEN),
        Route("GET", "/readyz", cluster.readyz, Access.OPEN),
        Route("HEAD", "/healthz", cluster.healthz, Access.OPEN),
        Route("HEAD", "/readyz", cluster.readyz, Access.OPEN),
        Route("GET", "/metrics", metrics.show, admin),
        Route("GET", "/v1/version", cluster.version, admin),
        Route("GET", "/v1/nodes", cluster.nodes, admin),
        Route("GET", "/v1/nodes/{id}", cluster.node, admin),
        Route("GET", "/v1/nodes/{id}/probe", node_check.probe, admin),
        Route("POST", "/v1/nodes/{id}/check", node_check.check, admin),
        Route("POST", "/v1/nodes/{id}/drain", node_verbs.drain, admin),
        Route("POST", "/v1/nodes/{id}/resume", node_verbs.resume, admin),
        Route("POST", "/v1/nodes/{id}/remove", node_verbs.remove, admin),
        Route("POST", "/v1/nodes/{id}/lost", node_verbs.lost, admin),
        Route("POST", "/v1/jobs", jobs.submit, admin),
        Route("POST", "/v1/jobs:validate", details.validate, admin),
        Route("GET", "/v1/jobs", job_list.list, admin),
        Route("GET", "/v1/jobs/{id}", jobs.show, admin),
        Route("GET", "/v1/jobs/{id}/spec", details.spec, admin),
        Route("GET", "/v1/jobs/{id}/env", details.env, admin),
        Route("GET", "/v1/jobs/{id}/fabric", details.fabric, admin),
        Route("PATCH", "/v1/jobs/{id}", verbs.change, admin),
        Route("GET", "/v1/jobs/{id}/wait", jobs.wait, admin),
        Route("POST", "/v1/jobs/{id}/cancel", jobs.cancel, admin),
        Route("GET", "/v1/jobs/{id}/events", events.of_job, admin),
        Route("GET", "/v1/events", events.of_all, admin),
        Route("GET", "/v1/jobs/{id}/explain", verbs.explain, admin),
        Route("POST", "/v1/jobs/{id}/signal", verbs.signal, admin),
        Route("POST", "/v1/jobs/{id}/stacks", verbs.stacks, admin),
        Route("GET", "/v1/jobs/{id}/evidence", details.evidence, admin),
        Route("POST", "/v1/jobs/{id}/rerun", verbs.rerun, admin),
        Route("GET", "/v1/jobs/{id}/logs", logs.read, admin),
        Route("GET", "/v1/agent", agents.serve, Access.JOIN),
        Route("GET", "/v1/agent/logs", log_connections.serve, Access.JOIN),
    ]
    open_requests = StreamRevocation(tokens)
    streams = StreamLimits(per_user_max=limits.streams_per_user_max, total_max=limits.streams_max)
    schema.describe(routes)
    access = AccessTable(routes, tokens, refusals_per_s=limits.refusals_per_s)
    app = web.Application(
        middlewares=[
            request_middleware(access, origins, metrics.http.ended),
            open_requests.middleware,
            streams.middleware,
        ],
        client_max_size=limits.http_body_bytes_max,
    )
    app[OPEN_REQUESTS] = open_requests
    for route in routes:
        app.router.add_route(route.method, route.path, route.handler, expect_handler=expectation)
    app.on_response_prepare.append(add_headers)

    async def close(_app: web.Application) -> None:
        reads.close()
        parsers.close()

    app.on_cleanup.append(close)
    return app
