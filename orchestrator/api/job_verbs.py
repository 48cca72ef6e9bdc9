"""What users do to a job after its submit: hold it, change it, signal it, run it again."""

from typing import Any, Final

from aiohttp import web
from msgspec import UNSET

from muster.protocol.http import ChangeAnswer
from muster.spec.amend import Amendment, amend
from muster.spec.problems import SpecError
from orchestrator.api.access import TOKEN
from orchestrator.api.conditional import wanted_revision
from orchestrator.api.jobs import declined, find_job, spec_problem, summary_of
from orchestrator.api.problems import ApiError, bad_field
from orchestrator.api.reading import job_id, struct_body
from orchestrator.api.responses import reply
from orchestrator.core.actions import Changed, Declined
from orchestrator.core.stimuli import ChangeReceived
from orchestrator.shell.coordinator import Coordinator

REASON_CHARS_MAX: Final = 1000
NOTHING: Final = "give one of priority, time_limit, name, hold"


class JobVerbsApi:
    """The routes below /v1/jobs/{id} that change a job or look into it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def change(self, request: web.Request) -> web.Response:
        """`{"priority": 80, "time_limit": "2h", "hold": true, "reason": "..."}`, any of them."""
        name = job_id(request)
        asked: dict[str, Any] = await struct_body(request, dict[str, Any])
        hold, reason = asked.pop("hold", UNSET), asked.pop("reason", "")
        if hold is not UNSET and not isinstance(hold, bool):
            raise bad_field("hold", "is neither true nor false")
        if not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX:
            raise bad_field("reason", f"is no text of at most {REASON_CHARS_MAX} characters")
        if not asked and hold is UNSET:
            raise ApiError(400, "bad_body", "there is nothing to change", NOTHING)
        state, job = await find_job(self._coordinator, name)
        revision = wanted_revision(request, state, job)
        try:
            wanted = amend(job.spec, asked, name) if asked else Amendment()
        except SpecError as error:
            raise spec_problem(error) from error
        user = request[TOKEN].user
        result = await self._coordinator.request(
            lambda rid: ChangeReceived(
                rid, name, user, *wanted, hold=hold, reason=reason, revision=revision
            )
        )
        match result:
            case Changed(job=changed, anything=anything):
                summary = await summary_of(self._coordinator, changed)
                return reply(ChangeAnswer(summary, anything))
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a change was answered with {result}")
