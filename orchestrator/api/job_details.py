"""Details of a job: specification, environment, fabric plan, evidence; and validation."""

from aiohttp import web

from muster.http.views import EnvironmentView, NodeEnvironment, SpecView
from muster.protocol.ids import JobId
from muster.spec.serialize import to_mapping
from orchestrator.api.dry_run import validation
from orchestrator.api.http.request_parsing import job_id
from orchestrator.api.http.responses import reply
from orchestrator.api.jobs import JobsApi, find_job
from orchestrator.api.redaction import without_secrets, without_secrets_inside
from orchestrator.core.gangs.launch import environments
from orchestrator.core.model.state import Job
from orchestrator.core.views.evidence import evidence_of
from orchestrator.core.views.fabric import fabric_view
from orchestrator.shell.coordinator import Coordinator


class JobDetailsApi:
    """POST /v1/jobs:validate, GET /v1/jobs/{id}/spec, /env, /fabric and /evidence."""

    def __init__(self, coordinator: Coordinator, jobs: JobsApi) -> None:
        self._coordinator = coordinator
        self._jobs = jobs

    async def validate(self, request: web.Request) -> web.Response:
        self._jobs.check_rate(request)  # it costs as much as a submit
        read = await self._jobs.parsed(request)
        return reply(validation(await self._coordinator.settled(), read.spec, read.filled))

    async def spec(self, request: web.Request) -> web.Response:
        job = await self._find(job_id(request))
        return reply(SpecView(job.id, without_secrets_inside(to_mapping(job.spec))))

    async def env(self, request: web.Request) -> web.Response:
        job = await self._find(job_id(request))
        if not job.attempts:
            return reply(EnvironmentView(job.id, None, ()))
        attempt = job.attempts[-1]
        nodes = tuple(
            NodeEnvironment(task.node, task.rank, None if env is None else without_secrets(env))
            for task, env in environments(job, attempt)
        )
        return reply(EnvironmentView(job.id, attempt.number, nodes))

    async def fabric(self, request: web.Request) -> web.Response:
        return reply(fabric_view(await self._find(job_id(request))))

    async def evidence(self, request: web.Request) -> web.Response:
        """Return the verdicts on the job, with the evidence of each."""
        return reply(evidence_of(await self._find(job_id(request))))

    async def _find(self, name: JobId) -> Job:
        return (await find_job(self._coordinator, name))[1]
