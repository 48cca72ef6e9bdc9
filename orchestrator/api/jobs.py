"""Jobs over HTTP: submit, look, wait, cancel."""

import asyncio
import hashlib
from typing import Final, assert_never

import msgspec
from aiohttp import web

from muster.protocol.http import (
    CancelAnswer,
    CancelRequest,
    EventList,
    FieldProblem,
    JobList,
    JobSummary,
)
from muster.protocol.ids import JobId
from muster.protocol.states import JobState
from muster.spec.parse import parse_job, parse_json
from muster.spec.problems import Kind, SpecError
from muster.spec.types import JobSpec
from orchestrator.api.access import TOKEN
from orchestrator.api.events import event_view
from orchestrator.api.problems import ApiError
from orchestrator.api.reading import Query, job_id, no_such_job, struct_body
from orchestrator.api.responses import reply
from orchestrator.core.actions import Cancelled, Declined, Submitted
from orchestrator.core.decide import DISK_FULL
from orchestrator.core.display import job_state, job_summary, job_view
from orchestrator.core.job import JobPhase
from orchestrator.core.state import Job, State
from orchestrator.core.stimuli import CancelReceived, SubmitReceived
from orchestrator.shell.coordinator import Coordinator

WAIT_S_DEFAULT: Final = 30.0
WAIT_S_MAX: Final = 60.0
_PAGE_DEFAULT: Final = 100
_PAGE_MAX: Final = 1000
_KEY_CHARS_MAX: Final = 255
_REASON_CHARS_MAX: Final = 1000
_GRACE_S_MAX: Final = 86_400.0
# Above this a body is parsed beside the loop: PyYAML reads about 100 KB a second.
_INLINE_BYTES: Final = 4096
_JSON_TYPES: Final = ("application/json",)
_YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
_DECLINED_STATUS: Final = {
    "unknown_job": 404,
    "idempotency_conflict": 409,
    "unsatisfiable": 422,
    DISK_FULL: 507,
}


class JobsApi:
    """The routes below /v1/jobs but for logs."""

    def __init__(self, coordinator: Coordinator, *, queued_max: int) -> None:
        self._coordinator = coordinator
        self._queued_max = queued_max

    async def submit(self, request: web.Request) -> web.Response:
        key = _idempotency_key(request)
        spec = await _read_spec(request)
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

    async def list(self, request: web.Request) -> web.Response:
        query = Query(request, ("state", "user", "limit", "cursor"))
        states = query.choices("state", (state.value for state in JobState))
        user = query.text("user")
        limit = query.number("limit", _PAGE_DEFAULT, least=1, most=_PAGE_MAX)
        before = query.optional_number("cursor", least=1, most=10**17)
        state = await self._coordinator.settled()
        now = self._coordinator.now()
        page: list[JobSummary] = []
        newest = state.next_job if before is None else min(before, state.next_job)
        for number in range(newest - 1, 0, -1):
            job = state.jobs.get(JobId(number))
            if job is None or (user is not None and job.user != user):
                continue
            if states is not None and job_state(job).value not in states:
                continue
            if len(page) == limit:
                return reply(JobList(tuple(page), str(page[-1].id)))
            page.append(job_summary(state, job, now))
        return reply(JobList(tuple(page)))

    async def show(self, request: web.Request) -> web.Response:
        state, job = await self._find(job_id(request))
        return reply(job_view(state, job, self._coordinator.now()))

    async def wait(self, request: web.Request) -> web.Response:
        """Answer when the job has ended, or when the time is over."""
        name = job_id(request)
        query = Query(request, ("timeout_s",))
        timeout_s = query.seconds("timeout_s", WAIT_S_DEFAULT, most=WAIT_S_MAX)
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
        query = Query(request, ("after", "limit"))
        after = query.number("after", 0, least=0, most=10**17)
        limit = query.number("limit", _PAGE_MAX, least=1, most=_PAGE_MAX)
        _, job = await self._find(job_id(request))
        found = await self._coordinator.events(job=job.id, after_seq=after, limit=limit)
        state = self._coordinator.state
        return reply(EventList(tuple(event_view(state, r.seq, r.at, r.fact) for r in found)))

    async def _find(self, name: JobId) -> tuple[State, Job]:
        state = await self._coordinator.settled()
        job = state.jobs.get(name)
        if job is None:
            raise no_such_job(name)
        return state, job

    async def _summary(self, name: JobId) -> JobSummary:
        state, job = await self._find(name)
        return job_summary(state, job, self._coordinator.now())


def _idempotency_key(request: web.Request) -> str:
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > _KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise ApiError(
            400,
            "bad_idempotency_key",
            f"the Idempotency-Key is not of 1 to {_KEY_CHARS_MAX} printable ASCII characters",
            "use a random UUID",
        )
    return key


async def _read_spec(request: web.Request) -> JobSpec:
    if request.content_type in _JSON_TYPES:
        parse = parse_json
    elif request.content_type in _YAML_TYPES:
        parse = parse_job
    else:
        raise ApiError(
            415,
            "unsupported_media_type",
            f"a job cannot be read from {request.content_type}",
            "send `Content-Type: application/json` or `Content-Type: application/yaml`",
        )
    raw = await request.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ApiError(
            400, "bad_encoding", f"the body is not UTF-8 text (byte {error.start})"
        ) from error
    try:
        return parse(text) if len(text) <= _INLINE_BYTES else await asyncio.to_thread(parse, text)
    except SpecError as error:
        raise _spec_problem(error) from error


def _spec_problem(error: SpecError) -> ApiError:
    fields = [
        FieldProblem(
            p.field,
            p.value or "",
            p.message if p.line is None else f"line {p.line}: {p.message}",
            p.hint,
        )
        for p in error.problems
    ]
    if any(problem.kind is Kind.SYNTAX for problem in error.problems):
        return ApiError(400, "bad_syntax", str(error), problems=fields)
    return ApiError(422, "bad_job", str(error), problems=fields)


def _declined(result: Declined) -> ApiError:
    status = _DECLINED_STATUS.get(result.code, 409)
    return ApiError(status, result.code, result.text, result.hint)


def _field(name: str, message: str) -> ApiError:
    return ApiError(
        422, "bad_field", f"{name} {message}", problems=[FieldProblem(name, "", message, "")]
    )
