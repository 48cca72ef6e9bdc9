"""Lists of jobs, newest first, in pages."""

from bisect import bisect_left
from typing import Final

import msgspec
from aiohttp import web

from muster.http.views import JobSummary
from orchestrator.api.http.access import AccessTable
from orchestrator.api.http.pagination import bad_cursor, make_cursor, read_cursor
from orchestrator.api.http.query_params import JobsQuery
from orchestrator.api.http.request_parsing import read_query
from orchestrator.api.http.responses import reply
from orchestrator.api.jobs import shown_line
from orchestrator.core.model.state import Job, State
from orchestrator.core.model.status import job_state
from orchestrator.core.rights.rules import Action
from orchestrator.core.scheduling.scheduler import WaitingReasons
from orchestrator.core.views.display import job_summary
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.job_archive import Page, SummaryLine

_JOBS: Final = "jobs"
_DIGITS_MAX: Final = 18
_NEWEST: Final = 10**_DIGITS_MAX
# One page visits at most this many jobs of the state, and the archive has its own limits, so that
# no query blocks the loop. Such a page may have fewer jobs than requested, and a cursor.
LOOKED_AT_MAX: Final = 10_000


class _Sent(msgspec.Struct, frozen=True):
    """A `JobList` in which some jobs are JSON already."""

    jobs: tuple[JobSummary | msgspec.Raw, ...]
    cursor: str | None


class JobListApi:
    """GET /v1/jobs."""

    def __init__(self, coordinator: Coordinator, access: AccessTable) -> None:
        self._coordinator = coordinator
        self._access = access

    async def list(self, request: web.Request) -> web.Response:
        query = read_query(request, JobsQuery)
        # Filtered before the pages are made, so that no page says how many jobs are hidden.
        users = self._access.shown_users(request)
        if query.user is not None:
            users = frozenset({query.user}) if users is None else users & {query.user}
        before = _NEWEST if query.cursor is None else _before(query.cursor)
        # The order matters: a job leaves the state once it is in the archive.
        known = self._known(await self._coordinator.durable_state(), query, users, before)
        archived = await self._coordinator.archive.page(
            before,
            query.limit + 1,
            states=query.state,
            users=users,
            name=query.name,
            pool=query.pool,
        )
        # Below it, one of the two has not been searched.
        floor = max(known.floor, archived.floor)
        found = {job.id: job for job in archived.jobs} | {job.id: job for job in known.jobs}
        page = sorted((job for job in found.values() if job.id >= floor), key=lambda job: -job.id)
        if len(page) > query.limit:
            del page[query.limit :]
            floor = page[-1].id
        cursor = make_cursor(_JOBS, str(floor)) if floor else None
        lines = [self._line(request, job) for job in page]
        return reply(_Sent(tuple(lines), cursor))

    def _line(self, request: web.Request, line: SummaryLine) -> JobSummary | msgspec.Raw:
        if self._access.allows(request, Action.READ_JOB, line.user):
            return line.summary
        return shown_line(self._access, request, line.decoded())

    def _known(
        self, state: State, query: JobsQuery, users: frozenset[str] | None, before: int
    ) -> Page:
        """Return the matching jobs of `users` (None: of all) in the state."""
        now = self._coordinator.now()
        only = next(iter(users)) if users is not None and len(users) == 1 else None
        ids = self._coordinator.index.candidates(states=query.state, user=only, name=query.name)
        end = bisect_left(ids, before)
        stop = max(0, end - LOOKED_AT_MAX)
        page: list[SummaryLine] = []
        waiting = WaitingReasons(state)
        for place in range(end - 1, stop - 1, -1):
            job = state.jobs[ids[place]]
            if (users is None or job.user in users) and _matches(job, query):
                page.append(SummaryLine(job.id, job.user, job_summary(state, job, now, waiting)))
                if len(page) > query.limit:
                    return Page(page, job.id)
        return Page(page, ids[stop] if stop else 0)


def _matches(job: Job, query: JobsQuery) -> bool:
    return (
        (query.pool is None or job.spec.pool == query.pool)
        and (query.name is None or job.spec.name == query.name)
        and (query.state is None or job_state(job) in query.state)
    )


def _before(cursor: str) -> int:
    number = read_cursor(_JOBS, cursor)
    if not (number.isascii() and number.isdigit()) or len(number) > _DIGITS_MAX:
        raise bad_cursor()
    return int(number)
