"""Pages of events as JSON, encoded in a thread, once for all readers at the same place."""

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from muster.protocol.ids import JobId
from muster.protocol.observations.hardware_events import OOM
from orchestrator.api.event_text import event_view
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.cluster import InputFailed
from orchestrator.core.facts.enrolment import EnrolmentFact, JoinSecretCreated, JoinSecretRevoked
from orchestrator.core.facts.people import PeopleFact
from orchestrator.core.facts.service import (
    HardwareReported,
    NodeDrained,
    NodeFaultRecorded,
    QuarantineSkipped,
)
from orchestrator.core.model.state import Job
from orchestrator.core.nodes.hardware import job_of
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator, events_key

# A fact can be as large as a request.
LIST_BYTES: Final = 1 << 20
STREAM_BYTES: Final = 256 << 10
_STREAM_LIMIT: Final = 200
_KEPT: Final = 8


OF_OPERATORS: Final = JobId(0)
"""No job: only operators may read it."""
OF_ADMINS: Final = JobId(-1)
"""No job: only admins may read it."""


class EventLine(NamedTuple):
    """An event: its sequence number, its job, its id, its kind, and its `EventView` as JSON."""

    seq: int
    job: JobId | None
    id: str
    kind: str
    data: bytes


class _Place(NamedTuple):
    """`newest` counts the commits so far: pages of one place differ once more is on disk."""

    job: JobId | None
    after: int
    newest: int


class EventPages:
    """Events after a place, of one job or (None) of all. Only the last few pages are kept."""

    def __init__(self, coordinator: Coordinator, reads: BulkReads) -> None:
        self._coordinator = coordinator
        self._reads = reads
        self._shared: OrderedDict[_Place, asyncio.Future[list[EventLine] | None]] = OrderedDict()

    async def listed(self, user: str, job: Job | None, after: int, limit: int) -> list[EventLine]:
        """Return at most `limit` events, and at most one beyond LIST_BYTES. Raises JournalError."""
        return await self._read(user, job, after, limit, LIST_BYTES)

    async def following(self, user: str, job: Job | None, after: int) -> list[EventLine]:
        """Return the next page of a stream, which all streams at this place share.

        Raises JournalError.
        """
        newest = self._coordinator.changes.count(events_key(None))
        place = _Place(None if job is None else job.id, after, newest)
        while (reading := self._shared.get(place)) is not None:
            page = await asyncio.shield(reading)
            if page is not None:
                return page
        reading = self._shared[place] = asyncio.get_running_loop().create_future()
        page = None
        try:
            page = await self._read(user, job, after, _STREAM_LIMIT, STREAM_BYTES)
        finally:
            # A reader that failed or left had no page: the next one reads for itself.
            reading.set_result(page)
            if page is None:
                self._shared.pop(place, None)
            while len(self._shared) > _KEPT and next(iter(self._shared.values())).done():
                self._shared.popitem(last=False)
        return page

    async def _read(
        self, user: str, job: Job | None, after: int, limit: int, bytes_max: int
    ) -> list[EventLine]:
        number = None if job is None else job.id
        async with self._reads.turn(user):
            found = await self._coordinator.events(
                job=number, after_seq=after, limit=limit, bytes_max=bytes_max
            )
        if not found:
            return []
        jobs: dict[JobId | None, Job | None] = {None: None, number: job}
        for recorded in found:
            name: JobId | None = getattr(recorded.fact, "job", None)
            if name is not None and name not in jobs and hasattr(recorded.fact, "rank"):
                jobs[name] = await self._coordinator.job(name)
        facts = [
            (jobs.get(getattr(each.fact, "job", None)), each.seq, each.at, each.fact)
            for each in found
        ]
        return await self._reads.slice(user, lambda: [_line(*fact) for fact in facts])


def _reader(fact: f.Fact) -> JobId | None:
    """Return the job that readers of the fact must be allowed to read: OF_OPERATORS if its text may
    quote several, OF_ADMINS if it is about people and secrets, None if it quotes none.
    """
    match fact:
        case NodeFaultRecorded():
            return fact.of_job
        case NodeDrained(left_by=(left_by, _)):
            return left_by
        case HardwareReported() if fact.event.code == OOM:
            return job_of(fact.event) or OF_OPERATORS
        case PeopleFact() | JoinSecretCreated() | JoinSecretRevoked():
            return OF_ADMINS
        case QuarantineSkipped() | NodeDrained(jobs=(_, *_)) | InputFailed() | EnrolmentFact():
            return OF_OPERATORS
        case _:
            name: JobId | None = getattr(fact, "job", None)
            return name


def _line(job: Job | None, seq: int, at: float, fact: f.Fact) -> EventLine:
    view = event_view(job, seq, at, fact)
    return EventLine(view.seq, _reader(fact), view.id, view.kind, msgspec.json.encode(view))
