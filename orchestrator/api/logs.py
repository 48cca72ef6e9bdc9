"""Logs over HTTP: what there is, then what comes, and a last line that says how it ended."""

from typing import Final

import msgspec
from aiohttp import web

from muster.daemon.tls import drop_connection
from muster.http.views import LogTrailer
from muster.protocol.ids import JobId
from muster.protocol.link.log_channel import StreamKind
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.query_params import LogFormat, LogsQuery
from orchestrator.api.http.request_parsing import job_id, read_moment, read_query, wrong_parameter
from orchestrator.api.jobs import find_job
from orchestrator.api.log_stream import LogReader, Selection
from orchestrator.shell.bulk_reads import BulkReads
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.reader import BadCursorError, Place, parse_cursor
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.stream_file import LogStoreError

_OF_RANKS: Final = frozenset({StreamKind.STDOUT.value, StreamKind.STDERR.value})


class LogsApi:
    """GET /v1/jobs/{id}/logs."""

    def __init__(self, coordinator: Coordinator, store: LogStore, reads: BulkReads) -> None:
        self._coordinator = coordinator
        self._store = store
        self._reads = reads

    async def read(self, request: web.Request) -> web.StreamResponse:
        name = job_id(request)
        query = read_query(request, LogsQuery)
        selection = _selection(query, self._coordinator.now().wall)
        as_text = query.format is LogFormat.TEXT
        place = _cursor(query)
        _, job = await find_job(self._coordinator, name)
        user = request[TOKEN].user
        reader = LogReader(
            self._coordinator, self._store, self._reads, user, job, selection, as_text=as_text
        )
        async with self._reads.turn(user):
            await self._check(name, reader, query)
        response = web.StreamResponse()
        response.content_type = "text/plain" if as_text else "application/x-ndjson"
        response.charset = "utf-8"
        # An attachment, because a browser must not render a job's output as a page of the
        # coordinator.
        kept_as = f"job-{name}.{'log' if as_text else 'ndjson'}"
        response.headers["Content-Disposition"] = f'attachment; filename="{kept_as}"'
        response.enable_chunked_encoding()
        await response.prepare(request)
        trailer = await reader.stream(
            request, response, place, query.tail_lines, follow=query.follow
        )
        if trailer is not None:
            await _finish(request, response, trailer, as_text=as_text, follow=query.follow)
        return response

    async def _check(self, name: JobId, reader: LogReader, query: LogsQuery) -> None:
        """Refuse now what cannot be answered once the stream has begun."""
        try:
            self._store.check_answers()
            removed = (await reader.load()).removed
            ambiguous = query.offset is not None and reader.several()
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
        if ambiguous:
            raise _wrong_offset(query, "names a byte of one stream", "name its node, too")


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
        elif follow and not trailer.end:
            # Text has no trailer: only a broken connection says that there is more.
            drop_connection(request.transport)
            return
        await response.write_eof()
    except ConnectionError:
        return  # the reader has gone


def _selection(query: LogsQuery, now: float) -> Selection:
    selection = Selection(
        rank=query.rank,
        node=query.node,
        kinds=None if query.stream is None else frozenset(kind.value for kind in query.stream),
        attempt=query.attempt,
        since=0.0 if query.since is None else read_moment("since", query.since, now),
        offset=query.offset or 0,
    )
    if query.offset is None:
        return selection
    if query.cursor is not None:
        raise _wrong_offset(query, "and a cursor exclude each other", "a cursor is enough")
    kinds = selection.kinds or frozenset()
    where = "rank" if kinds <= _OF_RANKS else "node"
    named = selection.rank if kinds <= _OF_RANKS else selection.node
    if len(kinds) != 1 or selection.attempt is None or named is None:
        hint = f"name the attempt, one stream, and its {where}; or resume at a record's cursor"
        raise _wrong_offset(query, "names a byte of one stream", hint)
    return selection


def _wrong_offset(query: LogsQuery, message: str, hint: str) -> ApiError:
    return wrong_parameter("offset", str(query.offset), message, hint)


def _cursor(query: LogsQuery) -> Place | None:
    if query.cursor is None:
        return None
    try:
        return parse_cursor(query.cursor)
    except BadCursorError as error:
        raise ApiError(
            400, "bad_cursor", str(error), "leave it out to read from the start"
        ) from error
