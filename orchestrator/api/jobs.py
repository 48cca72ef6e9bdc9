"""Jobs over HTTP: submit, look, wait, cancel."""

import asyncio
import hashlib
import math
from typing import Final, assert_never

import msgspec
from aiohttp import web

from muster.protocol.http import (
    CancelAnswer,
    CancelRequest,
    EventList,
    FieldProblem,
    JobSummary,
)
from muster.protocol.ids import JobId
from orchestrator.api.access import TOKEN
from orchestrator.api.conditional import idempotency_key, job_etag
from orchestrator.api.events import event_view
from orchestrator.api.parameters import WAIT_S_MAX, EventsQuery, NoQuery, WaitQuery
from orchestrator.api.problems import ApiError
from orchestrator.api.rates import RateLimit
from orchestrator.api.reading import job_id, no_such_job, read_query, struct_body
from orchestrator.api.responses import reply
from orchestrator.api.spec_body import spec_body
from orchestrator.core.actions import CHANGED, Cancelled, Declined, Submitted
from orchestrator.core.display import job_summary, job_view
from orchestrator.core.job import JobPhase
from orchestrator.core.state import Job, State
from orchestrator.core.stimuli import CancelReceived, SubmitReceived
from orchestrator.shell.coordinator import Coordinator

_REASON_CHARS_MAX: Final = 1000
_GRACE_S_MAX: Final = 86_400.0
_DECLINED_STATUS: Final = {
    "unknown_job": 404,
    "idempotency_conflict": 409,
    CHANGED: 412,
    "unsatisfiable": 422,
}


class JobsApi:
    """The routes below /v1/jobs but for logs."""

    def __init__(self, coordinator: Coordinator, *, queued_max: int, submits_per_s: float) -> None:
        self._coordinator = coordinator
        self._submits = RateLimit(submits_per_s)
        self._queued_max = queued_max

    async def submit(self, request: web.Request) -> web.Response:
        self._check_rate(request)
        key = idempotency_key(request)
        spec = await spec_body(request)
        user = request[TOKEN].user
        state = await self._coordinator.settled()
        queued = sum(map(len, state.queues.values()))
        if queued >= self._queued_max and (user, key) not in state.keys:
            raise ApiError(
                429,
                "queue_full",
                f"{self._queued_max} jobs are queued, which is the limit",
                "wait until some have started",
                headers={"Retry-After": "30"},
            )
        digest = hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()
        result = await self._coordinator.request(
            lambda rid: SubmitReceived(rid, spec, user, key, digest)
        )
        match result:
            case Submitted(job, created):
                location = {"Location": f"/v1/jobs/{job}"}
                return reply(await self._summary(job), 201 if created else 200, location)
            case Declined():
                raise _declined(result)
            case Cancelled():
                raise AssertionError(f"a submit was answered with {result}")
            case _:
                assert_never(result)

    async def show(self, request: web.Request) -> web.Response:
        name = job_id(request)
        read_query(request, NoQuery)
        state, job = await self._find(name)
        headers = {"ETag": job_etag(state, job)}
        return reply(job_view(state, job, self._coordinator.now()), headers=headers)

    async def wait(self, request: web.Request) -> web.Response:
        """Answer when the job has ended, or when the time is over."""
        name = job_id(request)
        timeout_s = min(read_query(request, WaitQuery).timeout_s, WAIT_S_MAX)
        changes = self._coordinator.changes
        try:
            async with asyncio.timeout(timeout_s):
                while not changes.closed:
                    seen = changes.count(name)
                    _, job = await self._find(name)
                    if job.phase is JobPhase.ENDED:
                        break
                    await changes.wait({name: seen})
        except TimeoutError:
            pass
        return reply(await self._summary(name))

    async def cancel(self, request: web.Request) -> web.Response:
        name = job_id(request)
        asked = await struct_body(request, CancelRequest)
        if len(asked.reason) > _REASON_CHARS_MAX:
            raise _field("reason", f"is longer than {_REASON_CHARS_MAX} characters")
        if asked.grace_s is not None and not 0 <= asked.grace_s <= _GRACE_S_MAX:
            raise _field("grace_s", f"is not from 0 to {_GRACE_S_MAX:g} seconds")
        user = request[TOKEN].user
        result = await self._coordinator.request(
            lambda rid: CancelReceived(
                rid, name, user, asked.reason, asked.grace_s, force=asked.force
            )
        )
        match result:
            case Cancelled(job, already_ended):
                return reply(CancelAnswer(await self._summary(job), already_ended), 202)
            case Declined():
                raise _declined(result)
            case Submitted():
                raise AssertionError(f"a cancel was answered with {result}")
            case _:
                assert_never(result)

    async def events(self, request: web.Request) -> web.Response:
        query = read_query(request, EventsQuery)
        _, job = await self._find(job_id(request))
        found = await self._coordinator.events(job=job.id, after_seq=query.after, limit=query.limit)
        state = self._coordinator.state
        return reply(EventList(tuple(event_view(state, r.seq, r.at, r.fact) for r in found)))

    def _check_rate(self, request: web.Request) -> None:
        """Raises ApiError (429)."""
        wait_s = self._submits.take(request[TOKEN].id, request.loop.time())
        if wait_s:
            raise ApiError(
                429,
                "too_many_submits",
                "this token submits faster than the coordinator takes",
                "wait, then submit again with the same Idempotency-Key",
                headers={"Retry-After": str(math.ceil(wait_s))},
            )

    async def _find(self, name: JobId) -> tuple[State, Job]:
        state = await self._coordinator.settled()
        job = state.jobs.get(name)
        if job is None:
            raise no_such_job(name)
        return state, job

    async def _summary(self, name: JobId) -> JobSummary:
        state, job = await self._find(name)
        return job_summary(state, job, self._coordinator.now())


def _declined(result: Declined) -> ApiError:
    status = _DECLINED_STATUS.get(result.code, 409)
    return ApiError(status, result.code, result.text, result.hint)


def _field(name: str, message: str) -> ApiError:
    return ApiError(
        422, "bad_field", f"{name} {message}", problems=[FieldProblem(name, "", message, "")]
    )
