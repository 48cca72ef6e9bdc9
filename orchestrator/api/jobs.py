"""Job routes: submit, show, wait, cancel."""

import asyncio
import math
from typing import Final

import msgspec
from aiohttp import web

from muster.http.job_actions import CancelAnswer, CancelRequest
from muster.http.views import JobSummary, Reason
from muster.protocol.ids import JobId
from muster.spec.model import JobSpec
from orchestrator.api.bundles.transfers import BundlesApi
from orchestrator.api.http.access import SUBJECT, TOKEN, AccessTable
from orchestrator.api.http.job_body import Read, spec_body
from orchestrator.api.http.preconditions import idempotency_key, job_etag, request_digest
from orchestrator.api.http.problems import ApiError, bad_field
from orchestrator.api.http.query_params import WAIT_S_MAX, WaitQuery
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.request_parsing import job_id, no_such_job, read_query, struct_body
from orchestrator.api.http.responses import reply, reply_from_thread
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.redaction import without_secrets_inside
from orchestrator.core.engine.decide import submitted_before
from orchestrator.core.facts.effects import (
    CHANGED,
    CHANGED_TOO_OFTEN,
    DISK_FULL,
    INTERNAL,
    SIGNED_TOO_OFTEN,
    TOO_MANY_BYTES,
    UNAUTHORIZED,
    UNKNOWN_JOB,
    UNKNOWN_TOKEN,
    UNKNOWN_USER,
    Cancelled,
    Declined,
    RequestId,
    Result,
    Submitted,
)
from orchestrator.core.facts.inputs import CancelReceived, SubmitReceived
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job, State
from orchestrator.core.rights.rules import Action
from orchestrator.core.views.display import job_summary, job_view
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import FORGOTTEN_HINT, Coordinator, forgotten_text

_REASON_CHARS_MAX: Final = 1000
_GRACE_S_MAX: Final = 86_400.0
_DECLINED_STATUS: Final = {
    UNAUTHORIZED: 401,
    UNKNOWN_JOB: 404,
    UNKNOWN_USER: 404,
    UNKNOWN_TOKEN: 404,
    "idempotency_conflict": 409,
    CHANGED: 412,
    "signal_refused": 422,
    "not_on_node": 422,
    "no_such_rank": 422,
    "unsatisfiable": 422,
    DISK_FULL: 507,
    INTERNAL: 500,
    TOO_MANY_BYTES: 429,
    CHANGED_TOO_OFTEN: 429,
    SIGNED_TOO_OFTEN: 429,
}


class JobsApi:
    """Routes below /v1/jobs, except logs."""

    def __init__(
        self,
        coordinator: Coordinator,
        access: AccessTable,
        *,
        code: BundlesApi,
        queued_max: int,
        submits_per_s: float,
        rules: SubmitRules,
        parsers: BulkReads,
        views: BulkReads,
    ) -> None:
        self._coordinator = coordinator
        self._access = access
        self._rules = rules
        self._code = code
        self._parsers = parsers
        self._views = views
        self._submits = RateLimit(submits_per_s)
        self._queued_max = queued_max

    async def submit(self, request: web.Request) -> web.Response:
        self.check_rate(request)
        key = idempotency_key(request)
        read = await self.parsed(request)
        return await self.submit_spec(request, key, read.spec, request_digest(read.asked))

    async def parsed(self, request: web.Request) -> Read:
        """Return the job in the body. Raises ApiError."""
        return await spec_body(request, self._rules, self._parsers)

    def check_rules(self, spec: JobSpec) -> None:
        """Check a job against the configuration. Raises ApiError (422)."""
        self._rules.check(spec)

    async def replayed_response(
        self, request: web.Request, key: str, digest: str
    ) -> web.Response | None:
        """Return the response to an earlier request with this key, or None."""
        known = await self._coordinator.submitted(request[TOKEN].user, key) if key else None
        if known is None:
            return None
        return await self._submitted(request, submitted_before(key, digest, *known))

    async def submit_spec(
        self,
        request: web.Request,
        key: str,
        spec: JobSpec,
        digest: str,
        rerun_of: JobId | None = None,
        code_of: str | None = None,
    ) -> web.Response:
        """Submit a parsed job. `digest` covers the request, which may contain more than the job.
        `code_of`: the owner of the job whose code is submitted again."""
        try:
            self.check_rules(spec)
            await self._code.check_spec(spec, request[TOKEN].user, code_of, rerun_of)
        except ApiError:
            # A request that was accepted before is answered as then, whatever the rules are by now.
            before = await self.replayed_response(request, key, digest)
            if before is None:
                raise
            return before
        self.check_priority(request, spec.priority)
        user = request[TOKEN].user
        state = await self._coordinator.durable_state()
        queued = sum(map(len, state.queues.values())) + len(state.held)
        if queued >= self._queued_max and await self._coordinator.submitted(user, key) is None:
            raise ApiError(
                429,
                "queue_full",
                f"{self._queued_max} jobs are queued, which is the limit",
                "wait until some have started",
                headers={"Retry-After": "30"},
            )
        self._access.check_token(request)
        result = await self._coordinator.submit(
            SubmitReceived(RequestId(0), spec, user, key, digest, rerun_of)
        )
        return await self._submitted(request, result)

    async def _submitted(self, request: web.Request, result: Result) -> web.Response:
        match result:
            case Submitted(job, created):
                if "id" not in request.match_info:
                    request[SUBJECT] = str(job)
                location = {"Location": f"/v1/jobs/{job}"}
                return reply(await self._summary(job), 201 if created else 200, location)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a submit was answered with {result}")

    async def show(self, request: web.Request) -> web.Response:
        name = job_id(request)
        state, job = await find_job(self._coordinator, name)
        headers = {"ETag": job_etag(state, job)}
        view = job_view(state, job, self._coordinator.now())
        return await reply_from_thread(
            self._views,
            request,
            lambda: msgspec.structs.replace(view, spec=without_secrets_inside(view.spec)),
            headers,
        )

    async def wait(self, request: web.Request) -> web.Response:
        """Respond when the job has ended, or at the timeout."""
        name = job_id(request)
        timeout_s = min(read_query(request, WaitQuery).timeout_s, WAIT_S_MAX)
        changes = self._coordinator.changes
        try:
            async with asyncio.timeout(timeout_s):
                while not changes.closed:
                    seen = changes.count(name)
                    _, job = await find_job(self._coordinator, name)
                    if job.phase is JobPhase.ENDED:
                        break
                    await changes.wait({name: seen})
        except TimeoutError:
            pass
        state, job = await find_job(self._coordinator, name)
        summary = job_summary(state, job, self._coordinator.now())
        return reply(shown_line(self._access, request, summary))

    async def cancel(self, request: web.Request) -> web.Response:
        name = job_id(request)
        asked = await struct_body(request, CancelRequest)
        if len(asked.reason) > _REASON_CHARS_MAX:
            raise bad_field("reason", f"is longer than {_REASON_CHARS_MAX} characters")
        if asked.grace_s is not None and not 0 <= asked.grace_s <= _GRACE_S_MAX:
            raise bad_field("grace_s", f"is not from 0 to {_GRACE_S_MAX:g} seconds")
        user = request[TOKEN].user
        result = await self._coordinator.request(
            lambda rid: CancelReceived(
                rid, name, user, asked.reason, asked.grace_s, force=asked.force
            )
        )
        match result:
            case Cancelled(job, already_ended, note):
                return reply(CancelAnswer(await self._summary(job), already_ended, note), 202)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a cancel was answered with {result}")

    def check_priority(self, request: web.Request, priority: int) -> None:
        """Raise ApiError (403) if the priority is above what the user's role and teams allow."""
        who = self._access.principal(request[TOKEN])
        most = self._access.policy.priority_max(who)
        if most is not None and priority > most:
            raise ApiError(
                403,
                "priority_too_high",
                f"priority {priority} is above {most}, the most for {who.name}",
                f"use at most {most}, or ask an operator",
            )

    def check_rate(self, request: web.Request) -> None:
        """Count a submit. Raises ApiError (429)."""
        wait_s = self._submits.take(request[TOKEN].id, request.loop.time())
        if wait_s:
            raise ApiError(
                429,
                "too_many_submits",
                "this token submits faster than the coordinator takes",
                "wait, then submit again with the same Idempotency-Key",
                headers={"Retry-After": str(math.ceil(wait_s))},
            )

    async def _summary(self, name: JobId) -> JobSummary:
        return await summary_of(self._coordinator, name)


def shown_line(access: AccessTable, request: web.Request, line: JobSummary) -> JobSummary:
    """Return the line of a job for the author of a request. For others than those who may read the
    job, reasons have no text: it may quote the job's output.
    """
    if access.allows(request, Action.READ_JOB, line.user):
        return line
    return msgspec.structs.replace(line, reason=Reason(line.reason.code, ""))


async def find_job(coordinator: Coordinator, name: JobId) -> tuple[State, Job]:
    """Return a job. Raises ApiError (404)."""
    job = await coordinator.job(name)
    if job is None and coordinator.forgot(name):
        raise ApiError(404, "job_forgotten", forgotten_text(name), FORGOTTEN_HINT)
    if job is None:
        raise no_such_job(name)
    return coordinator.state, job


async def summary_of(coordinator: Coordinator, name: JobId) -> JobSummary:
    """Return the summary of a job. Raises ApiError (404)."""
    state, job = await find_job(coordinator, name)
    return job_summary(state, job, coordinator.now())


def declined(result: Declined) -> ApiError:
    """Return the error for a request that the core declined."""
    status = _DECLINED_STATUS.get(result.code, 409)
    return ApiError(status, result.code, result.text, result.hint)
