"""Ended jobs: moving them from the state to the journal's archive, and finding them there.

Callers look a job up in the state first and then here: a job leaves the state only after its
archive row is on disk.
"""

import asyncio
import sqlite3
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from muster.http.views import JobSummary
from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.states import ENDED_STATES, JobState
from orchestrator.core.engine.decide import decide
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.model.errors import InvalidTransition
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Job, State
from orchestrator.core.model.status import job_state
from orchestrator.core.views.display import job_summary
from orchestrator.journal import archive
from orchestrator.journal.archive import Archived, ArchiveQuery
from orchestrator.journal.errors import CorruptJournalError
from orchestrator.journal.writer import JournalWriter

# Clients that waited for a job read it right after its end, so keep it in the state until then.
LINGER_S: Final = 1.0
# Bounds how long a commit waits for a move: a batch of this size takes some 10 ms.
_BATCH: Final = 32
ROOM_AGAIN_S: Final = 10.0
_KEPT: Final = 64
# New fields are only appended, and quotes in a text are escaped.
_LAST_FIELD: Final = f',"{JobSummary.__struct_encode_fields__[-1]}":'.encode()
_decode_summary: Final = msgspec.json.Decoder(JobSummary).decode


class SummaryLine(NamedTuple):
    """A job's summary in the form it is sent: archived JSON is passed on without decoding it."""

    id: int
    user: str
    summary: JobSummary | msgspec.Raw

    def decoded(self) -> JobSummary:
        """Return the summary as a struct."""
        given = self.summary
        return given if isinstance(given, JobSummary) else _decode_summary(given)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, newest first: all jobs numbered `floor` or more, up to the limit.

    If `floor` is 0, no further jobs follow.
    """

    jobs: list[SummaryLine]
    floor: int


class JobArchive:
    """Archived jobs, and ended jobs that wait for it. `ended` counts archived jobs by state."""

    def __init__(
        self,
        journal: JournalWriter,
        state: State,
        ended: Mapping[str, int],
        forgotten_to: int = 0,
    ) -> None:
        """`forgotten_to` is the highest number among jobs that retention has removed."""
        self.forgotten_to = forgotten_to
        self.ended = Counter({JobState(name): count for name, count in ended.items()})
        self._journal = journal
        self._state = state
        self._due = deque(job.id for job in state.jobs.values() if _may_go(job))
        self._going = set(self._due)
        self._work = asyncio.Event()
        if self._due:
            self._work.set()
        self._moved: dict[JobId, JobState] = {}  # moved, but still in the state
        self._found: OrderedDict[JobId, Job] = OrderedDict()
        self._reading: dict[JobId, asyncio.Future[Job | None]] = {}

    def observe(self, facts: Sequence[f.Fact]) -> None:
        for fact in facts:
            match fact:
                case f.JobEnded(job) | nf.WebhookSettled(job):
                    # A turn may contain both facts; queue the job once.
                    if _may_go(self._state.jobs[job]) and job not in self._going:
                        self._due.append(job)
                        self._going.add(job)
                        self._work.set()
                case f.JobForgotten(job):
                    self.ended[self._moved.pop(job)] += 1
                case _:
                    pass

    async def due(self) -> Sequence[JobId]:
        """Wait until jobs have ended and return the next batch. They stay due until moved.

        Waits LINGER_S longer if the batch is not full.
        """
        await self._work.wait()
        if len(self._due) < _BATCH:
            await asyncio.sleep(LINGER_S)
        return [self._due[place] for place in range(min(len(self._due), _BATCH))]

    async def move(self, state: State, jobs: Sequence[JobId]) -> bool:
        """Move jobs whose ends are on disk to the archive. Returns False if the disk is full.

        Raises JournalError.
        """
        rows = [_row(state, state.jobs[job]) for job in jobs]
        if not await self._journal.archive(rows):
            return False
        self._moved |= {job: JobState(row.state) for job, row in zip(jobs, rows, strict=True)}
        for _ in jobs:
            self._going.discard(self._due.popleft())
        if not self._due:
            self._work.clear()
        return True

    async def find(self, name: JobId) -> Job | None:
        """Return an archived job as it was when it ended. Raises JournalError."""
        found = self._found.get(name)
        if found is None:
            # Callers share the read: it may take seconds, and a thousand may ask at once.
            reading = self._reading.get(name)
            if reading is None:
                reading = asyncio.get_running_loop().create_task(
                    self._journal.read(partial(_retraced, name)), name=f"archive.read-{name}"
                )
                self._reading[name] = reading
                reading.add_done_callback(partial(self._read, name))
            found = await asyncio.shield(reading)
        if found is not None:
            self._found[name] = found
            self._found.move_to_end(name)
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return found

    def _read(self, name: JobId, reading: asyncio.Future[Job | None]) -> None:
        del self._reading[name]
        if not reading.cancelled():
            reading.exception()  # its callers may have gone

    async def oldest(self, after: archive.Ended, limit: int) -> list[archive.Ended]:
        """Return the archived jobs that ended first after a given end. Raises JournalError."""
        return await self._journal.read(partial(archive.oldest, after=after, limit=limit))

    async def forget(self, jobs: Sequence[int]) -> bool:
        """Delete these jobs. Returns False if the disk is full. Raises JournalError."""
        states = await self._journal.forget(jobs)
        if states is None:
            return False
        for state, count in states.items():
            self.ended[JobState(state)] -= count
        for job in jobs:
            self._found.pop(JobId(job), None)
        self.forgotten_to = max(self.forgotten_to, *jobs)
        return True

    async def submitted(self, user: str, key: str) -> tuple[JobId, str] | None:
        """Return the archived job of an idempotency key, and the digest of its submit.

        Raises JournalError.
        """
        found = await self._journal.read(partial(archive.by_key, user=user, key=key))
        return None if found is None else (JobId(found[0]), found[1])

    async def ended_at(self, jobs: Sequence[JobId]) -> dict[int, float]:
        """Return when the archived ones among `jobs` ended (UTC seconds). Raises JournalError."""
        return await self._journal.read(partial(archive.ended_at, jobs=jobs))

    async def owners(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """Return the users of the archived ones among `jobs`. Raises JournalError."""
        found = await self._journal.read(partial(archive.owners, jobs=jobs))
        return {JobId(job): user for job, user in found.items()}

    async def page(
        self,
        before: int,
        limit: int,
        *,
        states: Sequence[JobState] | None,
        users: Collection[str] | None,
        name: str | None,
        pool: str | None,
    ) -> Page:
        """Return jobs with numbers below `before` that match every filter that is not None.

        Raises JournalError.
        """
        ended = None if states is None else {state.value for state in ENDED_STATES & {*states}}
        if ended is not None and not ended:
            return Page([], 0)
        if ended is not None and len(ended) == len(ENDED_STATES):
            ended = None
        return await self._journal.read(
            partial(_page, ArchiveQuery(before, limit, ended, users, name, pool))
        )

    async def answer(
        self, state: State, asked: s.Input, now: Instant, limits: Limits
    ) -> a.Result | None:
        """Return the core's answer to a request for an archived job, or None if it is not archived.

        Raises JournalError.
        """
        name: JobId | None = getattr(asked, "job", None)
        job = None if name is None else await self.find(name)
        if job is None:
            return None
        books = State(epoch=state.epoch, nodes=state.nodes, jobs={job.id: job})
        decision = decide(books, asked, now, limits)
        if decision.facts:
            raise AssertionError(f"{asked} changes job {name}, which is in the archive")
        (answer,) = (act.result for act in decision.effects if isinstance(act, a.Answer))
        return answer


def _may_go(job: Job) -> bool:
    """True if a job has ended and none of its webhooks is pending."""
    return job.phase is JobPhase.ENDED and not job.queued_webhooks


def _row(state: State, job: Job) -> Archived:
    if job.ended_at is None:
        raise AssertionError(f"job {job.id} has not ended")
    return row_of(job, state.keys[job.user, job.key][1] if job.key else "")


def row_of(job: Job, digest: str = "") -> Archived:
    """Return the archive row of an ended job."""
    summary = job_summary(State(), job, Instant(0.0, 0.0))
    return Archived(
        job=job.id,
        user=job.user,
        name=job.spec.name,
        pool=job.spec.pool,
        state=job_state(job).value,
        ended_at=job.ended_at or 0.0,
        key=job.key,
        digest=digest,
        summary=msgspec.json.encode(summary),
    )


def _retraced(name: JobId, database: sqlite3.Connection) -> Job | None:
    facts = archive.facts_of(database, name)
    if not facts:
        return None
    try:
        return replay_job((recorded.fact, recorded.at) for recorded in facts)
    except (InvalidTransition, LookupError, ValueError) as error:
        raise CorruptJournalError(
            f"the facts of job {name} in the archive do not follow from each other ({error})"
        ) from error


def _page(asked: ArchiveQuery, database: sqlite3.Connection) -> Page:
    found = archive.search(database, asked)
    return Page([line_of(row) for row in found.jobs], found.floor)


def line_of(row: Archived) -> SummaryLine:
    """Return the line of a row.

    Rows of an older release lack fields, so they are decoded to get the defaults.
    """
    if row.summary.rfind(_LAST_FIELD) >= 0:
        return SummaryLine(row.job, row.user, msgspec.Raw(row.summary))
    return SummaryLine(row.job, row.user, _decode_summary(row.summary))
