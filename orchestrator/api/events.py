"""Events over HTTP: one page as JSON, or a stream of Server-Sent Events.

The id of an event is its position and its time in the journal. A reader that was cut off continues
after its last event, even after a restart of the coordinator, and a reader of a journal that was
replaced by a backup gets an error. Every reader reads the journal at its own pace; nothing is
buffered for it. `StreamRevocation` ends a stream whose token is no longer valid.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from muster.http.views import EventsEnd, EventView
from orchestrator.api.event_pages import OF_ADMINS, EventLine, EventPages
from orchestrator.api.event_text import event_id
from orchestrator.api.http.access import FOREIGN, TOKEN, AccessTable
from orchestrator.api.http.job_owners import JobOwners
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.query_params import EVENT_ID, EventsQuery
from orchestrator.api.http.request_parsing import job_id, read_query, shown, wrong_parameter
from orchestrator.api.http.route import STREAM
from orchestrator.api.jobs import find_job
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job
from orchestrator.core.rights.rules import Action
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator, events_key

HEARTBEAT_S: Final = 15.0
# Bytes that a stream writes at once. It loads more only when the client has read them.
_PIECE_BYTES: Final = 64 << 10
_HINT: Final = "send the last received id, or leave it out to read from the start"
_PAGES_MAX: Final = 16
"""Pages of others' events that one request for a list passes over."""
_EVENT_ID: Final = re.compile(EVENT_ID)


class EventsApi:
    """GET /v1/events and /v1/jobs/{id}/events."""

    def __init__(
        self,
        coordinator: Coordinator,
        reads: BulkReads,
        access: AccessTable,
        owners: JobOwners,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._coordinator = coordinator
        self._access = access
        self._owners = owners
        self._pages = EventPages(coordinator, reads)
        self._heartbeat_s = heartbeat_s

    async def of_all(self, request: web.Request) -> web.StreamResponse:
        query = read_query(request, EventsQuery)
        return await self._answer(request, query, _place(request, query.after), None)

    async def of_job(self, request: web.Request) -> web.StreamResponse:
        name = job_id(request)
        query = read_query(request, EventsQuery)
        place = _place(request, query.after)
        _, job = await find_job(self._coordinator, name)
        return await self._answer(request, query, place, job)

    async def _answer(
        self, request: web.Request, query: EventsQuery, place: "_Place", job: Job | None
    ) -> web.StreamResponse:
        after = place.seq
        follow = query.follow or STREAM in request.headers.get("Accept", "")
        if place.mark or place.header or follow:
            await self._check(place)
        if follow:
            return await self._stream(request, job, after)
        lines = await self._listed(request, job, after, query.limit)
        body = b",".join(line.data for line in lines)
        return web.Response(body=b'{"events":[' + body + b"]}", content_type="application/json")

    async def _listed(
        self, request: web.Request, job: Job | None, after: int, limit: int
    ) -> list[EventLine]:
        """Return events that the user may read. If many others come first, the last one looked at
        stands for them, without its content, so that a reader can go on behind it.
        """
        user = request[TOKEN].user
        passed = 0
        while True:
            page = await self._pages.listed(user, job, after, limit)
            shown = await self._readable(request, page)
            if shown or not page:
                return shown
            after = page[-1].seq
            passed += 1
            if passed == _PAGES_MAX:
                return [_hidden(page[-1])]

    async def _readable(self, request: web.Request, page: list[EventLine]) -> list[EventLine]:
        """Return the events of nodes, and of jobs that the user may read."""
        if not self._access.allows(request, Action.MANAGE_PEOPLE, ""):
            page = [line for line in page if line.job != OF_ADMINS]
        reads_all = self._access.allows(request, Action.READ_JOB, "")
        if reads_all and FOREIGN in request:
            return page
        owners = await self._owners.of({line.job for line in page if line.job is not None})
        if reads_all:
            others = set(owners.values()) - {request[TOKEN].user}
            if others:
                request[FOREIGN] = min(others)
            return page
        mine = {
            name
            for name, owner in owners.items()
            if self._access.allows(request, Action.READ_JOB, owner)
        }
        return [line for line in page if line.job is None or line.job in mine]

    async def _check(self, place: "_Place") -> None:
        """Refuse an event that has not been, or was another one: a reader from before a backup was
        restored would pass over what is new to it. A browser stops at a refusal and notifies
        its page.
        """
        if not place.seq:
            return
        found = await self._coordinator.events(
            job=None, after_seq=place.seq - 1, limit=1, bytes_max=1
        )
        if not found:
            message = "is beyond the newest event"
        elif place.mark and found[0].seq == place.seq and not place.names(found[0].at):
            message = "is another event now"
        else:
            return
        message += "; was a backup of the coordinator restored?"
        hint = "read again from the start: without Last-Event-ID and `after`"
        if not place.header:
            raise wrong_parameter("after", place.text, message, hint)
        raise ApiError(400, "bad_last_event_id", f"the Last-Event-ID {place.text} {message}", hint)

    async def _stream(
        self, request: web.Request, job: Job | None, after: int
    ) -> web.StreamResponse:
        await self._coordinator.durable_state()
        user = request[TOKEN].user
        again = "Last-Event-ID" in request.headers
        if again and _ended(job) and not await self._pages.following(user, job, after):
            return web.Response(status=204)  # browsers then do not reconnect
        response = web.StreamResponse(headers={"Content-Type": STREAM})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        end = await self._events(request, response, job, after)
        await response.write(b"event: end\ndata: " + msgspec.json.encode(end) + b"\n\n")
        await response.write_eof()
        return response

    async def _events(
        self, request: web.Request, response: web.StreamResponse, job: Job | None, after: int
    ) -> EventsEnd:
        """Write events until there will be no more. Raises ConnectionError when nobody reads."""
        changes, user = self._coordinator.changes, request[TOKEN].user
        key = events_key(None if job is None else job.id)
        while True:
            # Read the state before the events, because the last event is written before the job has
            # ended.
            if not changes.closed:
                await self._coordinator.durable_state()
            seen: dict[Hashable, int] = {key: changes.count(key)}
            final = _ended(job)
            page = await self._pages.following(user, job, after)
            for line in await self._readable(request, page):
                head = f"id: {line.id}\nevent: {line.kind}\ndata: ".encode()
                await _write(response, head + line.data + b"\n\n")
            if changes.closed:
                return EventsEnd(final=False, reason="server restarting")
            if page:
                after = page[-1].seq
                continue
            if final:
                return EventsEnd(final=True)
            await changes.wait(seen, self._heartbeat_s)
            if changes.count(key) == seen[key] and not changes.closed:
                await response.write(b": nothing new\n\n")


def _hidden(line: EventLine) -> EventLine:
    view = EventView(
        seq=line.seq,
        at=msgspec.json.decode(line.data, type=EventView).at,
        kind="Hidden",
        job=None,
        text="events of others' jobs",
        fields={},
        id=line.id,
    )
    return EventLine(line.seq, None, line.id, view.kind, msgspec.json.encode(view))


async def _write(response: web.StreamResponse, text: bytes) -> None:
    for at in range(0, len(text), _PIECE_BYTES):
        await response.write(text[at : at + _PIECE_BYTES])


def _ended(job: Job | None) -> bool:
    return job is not None and job.phase is JobPhase.ENDED


@dataclass(frozen=True, slots=True)
class _Place:
    """Behind which event to go on. `mark`: it was named by its `id`; `header`: by Last-Event-ID."""

    text: str
    header: bool

    @property
    def seq(self) -> int:
        return int(self.text.partition("-")[0])

    @property
    def mark(self) -> bool:
        return "-" in self.text

    def names(self, at: float) -> bool:
        """True if the event that is there now, of this time, is the one meant."""
        return self.text == event_id(self.seq, at)


def _place(request: web.Request, after: str) -> _Place:
    """The later one of what the header and the parameter say. Raises ApiError."""
    if not _EVENT_ID.fullmatch(after):
        raise wrong_parameter("after", after, "is not an event id", _HINT)
    text = request.headers.get("Last-Event-ID", "0")
    if not _EVENT_ID.fullmatch(text):
        message = f"{shown(text)} is not an event id"
        raise ApiError(400, "bad_last_event_id", message, _HINT)
    asked, last = _Place(after, header=False), _Place(text, header=True)
    return asked if asked.seq > last.seq or not last.seq else last
