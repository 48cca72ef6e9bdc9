"""The web application: the objects behind its routes, and the middleware of every request."""

from typing import Final

from aiohttp import web

from orchestrator.api.audit import AuditApi
from orchestrator.api.bundles.transfers import BundlesApi
from orchestrator.api.enrolment.install import InstallApi
from orchestrator.api.enrolment.routes import EnrolmentApi
from orchestrator.api.events import EventsApi
from orchestrator.api.http.access import AccessTable
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.job_owners import JobOwners
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
from orchestrator.api.people import PeopleApi
from orchestrator.api.routes import ROUTES
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.config import RequestLimits
from orchestrator.core.rights.principals import Policy
from orchestrator.enrolment import EnrolmentSettings
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.audit import AuditLog
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.bundles.store import BundleStore
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
    limits: RequestLimits,
    rules: SubmitRules,
    policy: Policy,
    audit_log: AuditLog,
    bundles: BundleStore,
    certificates: CertificateEnds,
    ca: bytes = b"",
    enrolment: EnrolmentSettings | None = None,
) -> web.Application:
    """Build the application. Only the routes of the table are reachable."""
    owners = JobOwners(coordinator)
    access = AccessTable(
        ROUTES,
        tokens,
        owners,
        policy,
        refusals_per_s=limits.refusals_per_s,
        agents_apart=enrolment is not None,
    )
    parsers, views = BulkReads(), BulkReads()
    code = BundlesApi(coordinator, bundles)
    jobs = JobsApi(
        coordinator,
        access,
        code=code,
        queued_max=limits.queued_jobs_max,
        submits_per_s=limits.submits_per_s,
        rules=rules,
        parsers=parsers,
        views=views,
    )
    reads = BulkReads()
    audit = AuditApi(coordinator, audit_log)
    open_requests = StreamRevocation(tokens, access)
    metrics = MetricsApi(coordinator, agents, log_connections, log_store, certificates)
    apis = (
        SchemaApi(ROUTES),
        NodesApi(coordinator, tokens, access, owners, rules, bundles.limits, certificates),
        metrics,
        NodeCheckApi(coordinator, access, jobs, rules),
        NodeActionsApi(coordinator),
        jobs,
        JobListApi(coordinator, access),
        JobDetailsApi(coordinator, jobs, views),
        JobActionsApi(coordinator, jobs, access),
        EventsApi(coordinator, reads, access, owners),
        LogsApi(coordinator, log_store, reads),
        audit,
        code,
        PeopleApi(coordinator, tokens, access, open_requests, ca, enrolment),
        EnrolmentApi(coordinator, enrolment, limits.refusals_per_s),
        InstallApi(enrolment, limits.refusals_per_s),
        agents,
        log_connections,
    )

    def ended(request: web.Request, status: int, took_s: float) -> None:
        metrics.http.ended(request, status, took_s)
        audit.observe(request, status)

    streams = StreamLimits(per_user_max=limits.streams_per_user_max, total_max=limits.streams_max)
    app = web.Application(
        middlewares=[
            request_middleware(access, origins, ended),
            open_requests.middleware,
            streams.middleware,
        ],
        client_max_size=limits.http_body_bytes_max,
    )
    app[OPEN_REQUESTS] = open_requests
    for route in ROUTES:
        handler = route.bind(apis)
        app.router.add_route(route.method, route.path, handler, expect_handler=expectation)
    app.on_response_prepare.append(add_headers)

    async def close(_app: web.Application) -> None:
        reads.close()
        parsers.close()
        views.close()
        code.close()
        bundles.close()

    app.on_cleanup.append(close)
    return app
