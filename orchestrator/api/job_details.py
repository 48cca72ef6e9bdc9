"""Details of a job: specification, environment, fabric plan, evidence; and validation."""

from functools import partial
from typing import Final

from aiohttp import web

from muster.http.views import EnvironmentView, NodeEnvironment, SpecView
from muster.protocol.ids import JobId
from muster.spec.serialize import to_mapping
from orchestrator.api.dry_run import validation
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.query_params import EnvironmentQuery
from orchestrator.api.http.request_parsing import job_id, read_query
from orchestrator.api.http.responses import reply, reply_from_thread
from orchestrator.api.jobs import JobsApi, find_job
from orchestrator.api.redaction import without_secrets, without_secrets_inside
from orchestrator.core.gangs.launch import environments, merged, origins
from orchestrator.core.model.state import Job
from orchestrator.core.views.evidence import evidence_of
from orchestrator.core.views.fabric import fabric_view
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator

_ENVIRONMENTS_BYTES_MAX: Final = 4 << 20


class JobDetailsApi:
    """POST /v1/jobs:validate, GET /v1/jobs/{id}/spec, /env, /fabric and /evidence."""

    def __init__(self, coordinator: Coordinator, jobs: JobsApi, views: BulkReads) -> None:
        self._coordinator = coordinator
        self._jobs = jobs
        self._views = views

    async def validate(self, request: web.Request) -> web.Response:
        self._jobs.check_rate(request)  # it costs as much as a submit
        read = await self._jobs.parsed(request)
        self._jobs.check_rules(read.spec)
        return reply(validation(await self._coordinator.durable_state(), read.spec, read.filled))

    async def spec(self, request: web.Request) -> web.Response:
        job = await self._find(job_id(request))
        return await reply_from_thread(
            self._views,
            request,
            lambda: SpecView(job.id, without_secrets_inside(to_mapping(job.spec))),
        )

    async def env(self, request: web.Request) -> web.Response:
        """Return the environment of each node, redacted node by node in a thread."""
        job = await self._find(job_id(request))
        only = read_query(request, EnvironmentQuery).node
        if not job.attempts:
            return reply(EnvironmentView(job.id, None, ()))
        attempt, user = job.attempts[-1], request[TOKEN].user
        nodes: list[NodeEnvironment] = []
        left = _ENVIRONMENTS_BYTES_MAX
        for task, layers in environments(job, attempt):
            if only not in (None, task.node):
                continue
            if left <= 0:
                return await self._environment(request, job, nodes, truncated=True)
            shown, found = None, {}
            if layers is not None:
                env, found = merged(layers), origins(layers)
                left -= sum(len(name) + len(value) for name, value in env.items())
                shown = await self._views.slice(user, partial(without_secrets, env))
            nodes.append(NodeEnvironment(task.node, task.rank, shown, found))
        return await self._environment(request, job, nodes, truncated=False)

    async def _environment(
        self, request: web.Request, job: Job, nodes: list[NodeEnvironment], *, truncated: bool
    ) -> web.Response:
        view = EnvironmentView(job.id, job.attempts[-1].number, tuple(nodes), truncated)
        return await reply_from_thread(self._views, request, lambda: view)

    async def fabric(self, request: web.Request) -> web.Response:
        return reply(fabric_view(await self._find(job_id(request))))

    async def evidence(self, request: web.Request) -> web.Response:
        """Return the verdicts on the job, with the evidence of each."""
        view = evidence_of(await self._find(job_id(request)))
        return await reply_from_thread(self._views, request, lambda: view)

    async def _find(self, name: JobId) -> Job:
        return (await find_job(self._coordinator, name))[1]
