"""A job's logs as one unbroken sequence over as many connections as needed.

The server ends every stream with a trailer. A stream without one was cut; a trailer that announces
more marks a restart of the server. In both cases, reading resumes at the cursor of the last record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from muster.client.endpoints import Query
from muster.client.errors import BadAnswerError
from muster.client.resumable_stream import ResumableStream
from muster.http.views import LogRecord, LogTrailer

Entry: TypeAlias = LogRecord | LogTrailer

_record: Final = msgspec.json.Decoder(LogRecord)
_trailer: Final = msgspec.json.Decoder(LogTrailer)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A selection of log bytes. None selects all ranks, nodes, streams and attempts, as over HTTP
    (`muster logs` shows the last attempt by asking for its number).

    `tail` is the number of last lines to begin with, None for everything. `since` skips what was
    read before that time (RFC 3339, or a span like `10m` before the coordinator's current time).
    `cursor`: begin after the record that carried it.
    """

    follow: bool = False
    rank: int | None = None
    node: str | None = None
    stream: str | None = None
    attempt: int | None = None
    tail: int | None = None
    since: str | None = None
    cursor: str | None = None

    def parameters(self, cursor: str | None) -> dict[str, str | int | float | None]:
        """Return the query of the request, from the beginning or after `cursor`."""
        cursor = cursor or self.cursor
        return {
            "format": "ndjson",
            "follow": 1 if self.follow else None,
            "rank": self.rank,
            "node": self.node,
            "stream": self.stream,
            "attempt": self.attempt,
            "tail": self.tail if cursor is None else None,
            "since": self.since,
            "cursor": cursor,
        }


class LogStream(ResumableStream[Entry]):
    """The position of a log reader. `over`: the trailer has arrived or, without `follow`, all there
    was."""

    what = "log stream"

    def __init__(self, query: LogQuery) -> None:
        super().__init__()
        self._query = query
        self._cursor: str | None = None

    def place(self) -> object:
        return self._cursor

    def query(self) -> Query:
        wanted = self._query
        if wanted.follow and wanted.tail is not None and self._cursor is None:
            # Fetch the last lines in a request of their own. Their trailer has a cursor, so that a
            # cut stream does not count later lines among them.
            wanted = replace(wanted, follow=wanted.cursor is not None)
        return wanted.parameters(self._cursor)

    def take(self, line: bytes) -> Entry | None:
        entry = _entry(line)
        if entry is None:
            return None
        self._cursor = entry.cursor or self._cursor
        if isinstance(entry, LogTrailer):
            self.over = _is_final(entry, self._query)
            self.reason = entry.reason or ""
            return entry if self.over else None
        return entry


def _entry(line: bytes) -> Entry | None:
    """Decode a record or a trailer. Returns None for an empty line, which servers may send as a
    heartbeat."""
    if not line.strip():
        return None
    try:
        return _record.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Try the trailer second, because it comes only once.
        try:
            return _trailer.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BadAnswerError(
                f"a line of the log stream cannot be read: {error}",
                "compare `muster version` on both sides",
            ) from error


def _is_final(trailer: LogTrailer, query: LogQuery) -> bool:
    """True if everything requested has arrived. A restarting server sends a reason without a
    state."""
    return trailer.end or (not query.follow and trailer.state is not None)
