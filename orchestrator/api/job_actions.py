"""Routes that act on a submitted job: hold, change, signal, stacks, explain and rerun."""

import asyncio
import math
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from muster.http.explanation import Explanation
from muster.http.job_actions import ChangeAnswer, RerunRequest, SignalAnswer, SignalRequest
from muster.protocol.ids import NodeName
from muster.spec.errors import InvalidValueError, SpecError
from muster.spec.model import JobSpec
from muster.spec.overrides import apply_overrides
from muster.spec.parse import parse_mapping
from muster.spec.serialize import to_mapping
from muster.spec.units import signal_name
from muster.spec.update import Amendment, amend
from orchestrator.api.http.access import TOKEN, AccessTable
from orchestrator.api.http.explanations import Explanations
from orchestrator.api.http.job_body import spec_problem
from orchestrator.api.http.preconditions import (
    idempotency_key,
    job_etag,
    request_digest,
    wanted_revisions,
)
from orchestrator.api.http.problems import ApiError, bad_field
from orchestrator.api.http.query_params import ExplainQuery
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.request_parsing import job_id, read_query, shown, struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.jobs import (
    JobsApi,
    declined,
    find_job,
    summary_of,
)
from orchestrator.core.facts.effects import Changed, Declined, Signalled, Stacks
from orchestrator.core.facts.inputs import ChangeReceived, SignalReceived, StacksReceived
from orchestrator.core.model.status import job_state
from orchestrator.core.rights.rules import Action
from orchestrator.core.scheduling.what_if import WAITING, what_if_state, what_if_text
from orchestrator.core.views.explain import Steps, explain_steps
from orchestrator.shell.coordinator import Coordinator

REASON_CHARS_MAX: Final = 1000
# Each may copy the whole environment of a job.
SETS_MAX: Final = 256
RANK_MAX: Final = 10**7
# Limit for one job, because its nodes examine all processes for each signal.
SIGNALS_PER_S: Final = 10.0
_SHOWN_CHARS: Final = 80
NOTHING: Final = "give one of priority, time_limit, name, hold"


class JobActionsApi:
    """Routes below /v1/jobs/{id} that change or inspect a job."""

    def __init__(self, coordinator: Coordinator, jobs: JobsApi, access: AccessTable) -> None:
        self._coordinator = coordinator
        self._access = access
        self._jobs = jobs
        self._explanations = Explanations(coordinator)
        self._signals = RateLimit(SIGNALS_PER_S)

    async def change(self, request: web.Request) -> web.Response:
        """Change a job: any of `{"priority": 80, "time_limit": "2h", "hold": true, "reason":
        "..."}`.
        """
        name = job_id(request)
        asked: dict[str, Any] = await struct_body(request, dict[str, Any])
        hold, reason = asked.pop("hold", UNSET), asked.pop("reason", "")
        if hold is not UNSET and not isinstance(hold, bool):
            raise bad_field("hold", "is neither true nor false")
        if not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX:
            raise bad_field("reason", f"is not a text of at most {REASON_CHARS_MAX} characters")
        if not asked and hold is UNSET:
            raise ApiError(400, "bad_body", "there is nothing to change", NOTHING)
        state, job = await find_job(self._coordinator, name)
        revisions = wanted_revisions(request, state)
        try:
            wanted = amend(job.spec, asked, name) if asked else Amendment()
        except SpecError as error:
            raise spec_problem(error) from error
        if wanted.priority is not UNSET and wanted.priority != job.spec.priority:
            self._jobs.check_priority(request, wanted.priority)
        user = request[TOKEN].user
        result = await self._coordinator.request(
            lambda rid: ChangeReceived(
                rid, name, user, *wanted, hold=hold, reason=reason, revisions=revisions
            )
        )
        match result:
            case Changed(job=changed, anything=anything):
                summary = await summary_of(self._coordinator, changed)
                state, job = await find_job(self._coordinator, changed)
                etag = {"ETag": job_etag(state, job)}
                return reply(ChangeAnswer(summary, anything), headers=etag)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a change was answered with {result}")

    async def explain(self, request: web.Request) -> web.Response:
        """Explain why the job waits, runs on its nodes, or has ended."""
        name = job_id(request)
        query = read_query(request, ExplainQuery)
        sees = partial(self._access.allows, request, Action.SEE_JOB)
        drained = [NodeName(node) for node in query.drained or ()]
        supposing = what_if_text(query.nodes, drained, query.time_limit_s)

        async def begin() -> Steps[Explanation]:
            state, job = await find_job(self._coordinator, name)
            now = self._coordinator.now()
            if not supposing:
                return explain_steps(state, job, now, sees)
            for node in drained:
                if node not in state.nodes:
                    raise bad_field("drained", f"{shown(node)} is not a node; see: muster nodes")
            if job.phase not in WAITING:
                raise ApiError(
                    409,
                    "not_waiting",
                    f"job {name} is {job_state(job).value}: what-if questions need a waiting job",
                    f"its end: muster explain {name}",
                )
            asked = what_if_state(state, job, query.nodes, drained, query.time_limit_s)
            return explain_steps(*asked, now, sees)

        explanation = await self._explanations.make(request[TOKEN].user, begin)
        if supposing:
            text = "it would start now" if explanation.starts_now else explanation.text
            explanation = msgspec.structs.replace(explanation, supposing=supposing, text=text)
        return reply(explanation)

    async def signal(self, request: web.Request) -> web.Response:
        """Send a signal to the ranks on all nodes. Does not end the job by itself."""
        name = job_id(request)
        asked = await struct_body(request, SignalRequest)
        wait_s = self._signals.take(name, request.loop.time())
        if wait_s:
            raise ApiError(
                429,
                "too_many_signals",
                f"job {name} gets signals faster than its nodes deliver them",
                "wait, then signal it again",
                headers={"Retry-After": str(math.ceil(wait_s))},
            )
        try:
            signal = signal_name(str(asked.signal))
        except InvalidValueError as error:
            given = str(asked.signal)[:_SHOWN_CHARS]
            raise bad_field("signal", f"{error.message}; {error.hint}", given) from error
        if asked.rank is not None and not 0 <= asked.rank <= RANK_MAX:
            raise bad_field("rank", "is not the number of a rank")
        user = request[TOKEN].user
        result = await self._coordinator.request(
            lambda rid: SignalReceived(rid, name, user, signal, asked.node, asked.rank)
        )
        match result:
            case Signalled(job=job, nodes=nodes, away=away):
                summary = await summary_of(self._coordinator, job)
                return reply(SignalAnswer(summary, signal, nodes, away), 202)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a signal was answered with {result}")

    async def stacks(self, request: web.Request) -> web.Response:
        """Return the current stacks of the ranks, as collected by their nodes."""
        name = job_id(request)
        result = await self._coordinator.request(lambda rid: StacksReceived(rid, name))
        match result:
            case Stacks(view=view):
                return reply(view)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a look was answered with {result}")

    async def rerun(self, request: web.Request) -> web.Response:
        """Submit a new job with the original specification and the requested changes."""
        self._jobs.check_rate(request)
        name = job_id(request)
        key = idempotency_key(request)
        asked = await struct_body(request, RerunRequest)
        state, job = await find_job(self._coordinator, name)
        if len(asked.set) > SETS_MAX:
            raise bad_field("set", f"has {len(asked.set)} entries, and {SETS_MAX} is the most")
        try:
            spec = await asyncio.to_thread(_changed_spec, job.as_submitted, asked)
        except SpecError as error:
            raise spec_problem(error) from error
        digest = request_digest(spec, f"again {name}")
        unknown = [node for node in asked.exclude if node not in state.nodes]
        if unknown:
            # It may have been removed since the request was accepted.
            before = await self._jobs.replayed_response(request, key, digest)
            if before is None:
                raise bad_field("exclude", f"{unknown[0]!r} is not a node; see: muster nodes")
            return before
        code_of = job.user if spec.bundle == job.spec.bundle else None
        return await self._jobs.submit_spec(request, key, spec, digest, name, code_of)


def _changed_spec(spec: JobSpec, asked: RerunRequest) -> JobSpec:
    """Return the specification with the requested changes. Raises SpecError."""
    tree = apply_overrides(to_mapping(spec), asked.set)
    return parse_mapping(without_nodes(tree, asked.exclude))


def without_nodes(tree: dict[str, object], nodes: tuple[str, ...]) -> dict[str, object]:
    """Return a job's mapping that also excludes these nodes."""
    placement = tree.get("placement")
    if not nodes or not isinstance(placement, dict | None):
        return tree
    chosen = dict(placement or {})
    named, excluded = chosen.get("include"), chosen.get("exclude")
    gone = set(nodes)
    rest = [node for node in named if node not in gone] if isinstance(named, list) else []
    if rest:
        # Remove them from the included nodes. An empty list would mean any node.
        chosen["include"] = rest
    else:
        before = excluded if isinstance(excluded, list) else []
        chosen["exclude"] = list(dict.fromkeys([*before, *nodes]))
    return {**tree, "placement": chosen}
