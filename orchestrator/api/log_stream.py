"""A reader of one job's logs, at its own pace: bytes come from files, never from a queue."""

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec
import structlog
from aiohttp import web

from muster.http.views import LogRecord, LogTrailer
from muster.protocol.instant import Instant
from muster.protocol.timestamp import timestamp
from orchestrator.core.gangs.log_delivery import tasks_with_pending_logs
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job
from orchestrator.core.model.status import job_state
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.job_streams import JobStreams
from orchestrator.shell.logs.reader import (
    History,
    Live,
    Piece,
    Place,
    Source,
    history,
    last_lines,
    live,
    take,
)
from orchestrator.shell.logs.store import LogStore, log_key
from orchestrator.shell.logs.stream_file import Late, LogStoreError, StreamFile, StreamKey

# Longest wait for the next byte, counted from the end of the job or from the last byte.
DELIVERY_S: Final = 5.0
_UNREADABLE: Final = (
    "the logs cannot be read; log_read_failed in the coordinator's log names the file"
)
_LOOK_EVERY_S: Final = 10.0  # whether the reader is still there
# A batch is in memory up to three times while its reader takes it, and there may be many readers.
_BATCH_BYTES: Final = 64 * 1024

_log = structlog.get_logger("muster.logs")


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted streams, None for all of them; `since` (UTC seconds) and `offset` say from
    where on.
    """

    rank: int | None
    node: str | None
    kinds: frozenset[str] | None
    attempt: int | None
    since: float = 0.0
    offset: int = 0

    def takes(self, key: StreamKey, node: str) -> bool:
        return (
            (self.rank is None or key.rank == self.rank)
            and (self.node is None or node == self.node)
            and (self.kinds is None or key.kind in self.kinds)
            and (self.attempt is None or key.attempt == self.attempt)
        )


class LogReader:
    """Writes what `selection` chooses to a response, as records or (`as_text`) as bare bytes."""

    def __init__(
        self,
        coordinator: Coordinator,
        store: LogStore,
        reads: BulkReads,
        user: str,
        job: Job,
        selection: Selection,
        *,
        as_text: bool,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._reads = reads
        self._user = user
        self._job = job  # it changes until it has ended
        self._name = job.id
        self._selection = selection
        self._as_text = as_text
        self._logs: JobStreams | None = None
        self._last: Place | None = None
        self._ended_seen: float | None = None  # monotonic seconds
        self._announced: set[tuple[StreamKey, Late]] = set()

    async def load(self) -> JobStreams:
        """Load the job's logs. Raises LogStoreError."""
        self._logs = await self._store.load(self._name)
        return self._logs

    def several(self) -> bool:
        """True if more than one stream is chosen. Raises LogStoreError."""
        return len(list(islice(self._sources(), 2))) > 1

    async def stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        place: Place | None,
        tail: int | None,
        *,
        follow: bool,
    ) -> LogTrailer | None:
        """Write records until there are no more; None where the reader has gone.

        Without `follow` that is what there is now, and for a job that has ended all of it.
        """
        self._last = place
        try:
            await self.load()
            after = await self._history(response, place, tail)
            while True:
                changes = self._coordinator.changes
                seen = {key: changes.count(key) for key in (self._name, log_key(self._name))}
                async with self._reads.turn(self._user):
                    await self.load()
                # Read the state before the logs, because the last logs are stored before the job
                # counts as complete.
                state_name, exit_code, ended_at, missing = self._ending()
                after = await self._live(response, after)
                await self._announce_late(response, after)
                # A burst of logs may take a while to arrive, so count from its last byte.
                waited = self._waited(ended_at)
                final = ended_at is not None and (not missing or waited >= DELIVERY_S)
                # If the job has ended, its last bytes may still be on their way to the coordinator.
                complete = final if follow or ended_at is not None else True
                if complete or changes.closed:
                    restarting = follow and changes.closed and not final
                    place = self._last or after
                    return LogTrailer(
                        end=final,
                        state=state_name,
                        exit_code=exit_code,
                        reason=f"server restarting, resume at cursor {place}"
                        if restarting
                        else _undelivered(missing, final),
                        cursor=str(place),
                    )
                left_s = _LOOK_EVERY_S if ended_at is None else max(0.0, DELIVERY_S - waited)
                await changes.wait(seen, left_s)
                if request.transport is None or request.transport.is_closing():
                    return None
        except ConnectionError:
            return None
        except LogStoreError as error:
            return await self._unreadable(error)

    def _waited(self, ended_at: float | None) -> float:
        """Return for how long, in seconds, an ended job has delivered nothing more."""
        if ended_at is None:
            return 0.0
        now = self._coordinator.now()
        if self._ended_seen is None:
            self._ended_seen = now.mono
        return waited_s(now, ended_at, self._ended_seen, self._loaded.grew_at)

    @property
    def _loaded(self) -> JobStreams:
        assert self._logs is not None
        return self._logs

    async def _unreadable(self, error: LogStoreError) -> LogTrailer:
        removed = None
        with contextlib.suppress(LogStoreError):
            removed = (await self.load()).removed
        if removed is not None:
            return LogTrailer(end=True, reason=removed.text(self._name))
        _log.error("log_read_failed", job=self._name, why=str(error))
        cursor = None if self._last is None else str(self._last)
        return LogTrailer(end=False, reason=_UNREADABLE, cursor=cursor)

    async def _history(
        self, response: web.StreamResponse, place: Place | None, tail: int | None
    ) -> Live:
        if isinstance(place, Live):
            return place
        boundary = self._loaded.next_seq if place is None else place.boundary
        start = place
        if tail == 0 and place is None:
            return Live(boundary, 0)
        if tail is not None and place is None:
            start = await self._tail(last_lines(self._sources(), boundary, tail))
        await self._send(response, history(self._sources(), boundary, start))
        return Live(boundary, 0)

    async def _tail(self, search: Iterator[History | None]) -> History | None:
        found: list[History | None] = [None]
        while found == [None]:
            found = await self._reads.slice(self._user, lambda: list(islice(search, 1)))
        return found[0] if found else None

    async def _live(self, response: web.StreamResponse, after: Live) -> Live:
        until = self._loaded.next_seq
        if after.seq >= until:
            return after
        await self._send(response, live(self._sources(), after, until))
        return Live(until, 0)

    async def _send(self, response: web.StreamResponse, pieces: Iterator[Piece]) -> None:
        while True:
            payload, last = await self._reads.slice(self._user, lambda: self._next(pieces))
            if last is None:
                return
            if len(payload) >= _BATCH_BYTES:
                await self._coordinator.yield_to_scheduling()
            await response.write(payload)
            self._last = last

    def _next(self, pieces: Iterator[Piece]) -> tuple[bytes, Place | None]:
        taken = take(pieces, _BATCH_BYTES)
        if not taken:
            return b"", None
        if self._as_text:
            return b"".join(piece.data for piece in taken), taken[-1].place
        lines = [msgspec.json.encode(self._record(piece)) for piece in taken]
        return b"\n".join([*lines, b""]), taken[-1].place

    async def _announce_late(self, response: web.StreamResponse, after: Live) -> None:
        """A record without bytes for each stream whose next bytes could not be stored so far."""
        if self._as_text:
            return
        for key, late in list(self._loaded.late.items()):
            node = self._node(key)
            if (key, late) in self._announced or not self._selection.takes(key, node):
                continue
            self._announced.add((key, late))
            record = LogRecord(
                attempt=key.attempt,
                node=node,
                rank=None if key.rank < 0 else key.rank,
                stream=key.kind,
                offset=late.offset,
                len=0,
                ts=timestamp(late.since),
                cursor=str(self._last or after),
                data="",
                node_rank=key.node_rank,
                gap=late.why,
            )
            await response.write(msgspec.json.encode(record) + b"\n")

    def _record(self, piece: Piece) -> LogRecord:
        data, data_b64 = None, None
        try:
            data = piece.data.decode()
        except UnicodeDecodeError:
            data_b64 = base64.b64encode(piece.data).decode()
        key = piece.key
        return LogRecord(
            attempt=key.attempt,
            node=self._node(key),
            rank=None if key.rank < 0 else key.rank,
            stream=key.kind,
            offset=piece.offset,
            len=len(piece.data),
            ts=timestamp(piece.ts),
            cursor=str(piece.place),
            data=data,
            data_b64=data_b64,
            node_rank=key.node_rank,
            gap=piece.gap,
        )

    def _sources(self) -> Iterator[Source]:
        """The chosen streams. A gang may have very many, so the reader, in a thread, makes
        them. Raises LogStoreError.
        """
        chosen = self._selection
        streams = list(self._loaded.streams.items())
        return (
            self._source(key, stream)
            for key, stream in streams
            if chosen.takes(key, self._node(key))
        )

    def _source(self, key: StreamKey, stream: StreamFile) -> Source:
        # Read before the newest arrival, as the store writes it after that.
        indexed = stream.indexed
        chosen = self._selection
        return Source(key, stream.path, stream.last_seq, chosen.since, chosen.offset, indexed)

    def _node(self, key: StreamKey) -> str:
        task = self._job.task(key.attempt, key.node_rank)
        return "" if task is None else task.node

    def _ending(self) -> tuple[str, int | None, float | None, list[str]]:
        """State, exit code, when the job ended, and the nodes whose logs are not all here."""
        job = self._job
        exit_code = job.cause.exit_code if job.cause is not None else None
        ended_at = job.ended_at if job.phase is JobPhase.ENDED else None
        return job_state(job).value, exit_code, ended_at, self._missing(job)

    def _missing(self, job: Job) -> list[str]:
        stored = self._loaded.stored
        return sorted({task.node for task in tasks_with_pending_logs(job, stored)})


def _undelivered(missing: list[str], final: bool) -> str | None:
    if not final or not missing:
        return None
    return f"not all logs were delivered by {', '.join(missing)}"


def waited_s(now: Instant, ended_at: float, ended_seen: float, grew_at: float) -> float:
    """Return the seconds since a job ended (`ended_at`, wall) and its logs last grew (`grew_at`).

    `ended_seen` is when this reader saw that it had ended, because the wall clock may be set back.
    `ended_seen` and `grew_at` are monotonic seconds.
    """
    return min(max(now.wall - ended_at, now.mono - ended_seen), now.mono - grew_at)
