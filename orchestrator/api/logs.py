"""Logs over HTTP: what there is, then what comes, and a last line that says how it ended."""

from typing import Final

import msgspec
from aiohttp import web

from muster.protocol.http import LogTrailer
from muster.protocol.ids import JobId
from muster.protocol.logs import StreamKind
from orchestrator.api.log_reader import LogReader, Selection
from orchestrator.api.problems import ApiError
from orchestrator.api.reading import Query, job_id, no_such_job
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.merge import BadCursorError, Place, parse_cursor
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream import LogStoreError

_TAIL_MAX: Final = 100_000
_PARAMETERS: Final = (
    "follow",
    "tail",
    "since",
    "rank",
    "node",
    "stream",
    "attempt",
    "format",
    "offset",
    "cursor",
)
_OF_RANKS: Final = frozenset({StreamKind.STDOUT.value, StreamKind.STDERR.value})


class LogsApi:
    """GET /v1/jobs/{id}/logs."""

    def __init__(self, coordinator: Coordinator, store: LogStore) -> None:
        self._coordinator = coordinator
        self._store = store

    async def read(self, request: web.Request) -> web.StreamResponse:
        name = job_id(request)
        query = Query(request, _PARAMETERS)
        selection = _selection(query, self._coordinator.now().wall)
        as_text = (query.one_of("format", ("ndjson", "text")) or "ndjson") == "text"
        place = _cursor(query)
        tail = _tail(query)
        follow = query.flag("follow")
        if name not in (await self._coordinator.settled()).jobs:
            raise no_such_job(name)
        reader = LogReader(self._coordinator, self._store, name, selection, as_text=as_text)
        self._check(name, reader, query)
        response = web.StreamResponse()
        response.content_type = "text/plain" if as_text else "application/x-ndjson"
        response.charset = "utf-8"
        response.enable_chunked_encoding()
        await response.prepare(request)
        trailer = await reader.stream(request, response, place, tail, follow=follow)
        if trailer is not None:
            await _finish(request, response, trailer, as_text=as_text, follow=follow)
        return response

    def _check(self, name: JobId, reader: LogReader, query: Query) -> None:
        """Refuse now what cannot be answered once the stream has begun."""
        try:
            removed = self._store.removed(name)
            streams = reader.streams()
        except LogStoreError as error:
            raise ApiError(
                503, "logs_unreadable", str(error), "try again; an operator must look at the disk"
            ) from error
        if removed is not None:
            raise ApiError(
                410,
                "logs_removed",
                removed.text(name),
                "job_logs in the coordinator's configuration says how long logs are kept",
            )
        if query.text("offset") is not None and streams > 1:
            raise query.wrong("offset", "names a byte of one stream", "name its node, too")


async def _finish(
    request: web.Request,
    response: web.StreamResponse,
    trailer: LogTrailer,
    *,
    as_text: bool,
    follow: bool,
) -> None:
    try:
        if not as_text:
            await response.write(msgspec.json.encode(trailer) + b"\n")
        elif follow and not trailer.end and request.transport is not None:
            # Text has no trailer: only a broken connection says that there is more.
            request.transport.abort()
            return
        await response.write_eof()
    except ConnectionError:
        return  # the reader has gone


def _selection(query: Query, now: float) -> Selection:
    selection = Selection(
        rank=query.optional_number("rank", least=0, most=10**9),
        node=query.text("node"),
        kinds=query.choices("stream", (kind.value for kind in StreamKind)),
        attempt=query.optional_number("attempt", least=1, most=10**9),
        since=query.moment("since", now) or 0.0,
        offset=query.number("offset", 0, least=0, most=10**18 - 1),
    )
    if query.text("offset") is None:
        return selection
    if query.text("cursor") is not None:
        raise query.wrong("offset", "and a cursor exclude each other", "a cursor is enough")
    kinds = selection.kinds or frozenset()
    where = "rank" if kinds <= _OF_RANKS else "node"
    named = selection.rank if kinds <= _OF_RANKS else selection.node
    if len(kinds) != 1 or selection.attempt is None or named is None:
        hint = f"name the attempt, one stream, and its {where}; or resume at a record's cursor"
        raise query.wrong("offset", "names a byte of one stream", hint)
    return selection


def _tail(query: Query) -> int | None:
    if query.text("tail") == "all":
        return None
    return query.optional_number("tail", least=0, most=_TAIL_MAX)


def _cursor(query: Query) -> Place | None:
    text = query.text("cursor")
    if text is None:
        return None
    try:
        return parse_cursor(text)
    except BadCursorError as error:
        raise ApiError(
            400, "bad_cursor", str(error), "leave it out to read from the start"
        ) from error
