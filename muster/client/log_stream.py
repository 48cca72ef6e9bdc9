"""A job's logs as one unbroken sequence, over as many connections as it takes.

The server ends every stream with a trailer. A stream without one was cut, and one whose trailer
says that more will come was let go (a restart): both go on at the cursor of the last record.
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
    """Which log bytes: None is all ranks, nodes, streams and attempts, as over HTTP (`muster logs`
    shows the last attempt: it asks for its number).

    `tail` is the number of last lines to begin with, None for everything; `since` leaves out what
    was read before that time (RFC 3339, or a span like `10m` before the coordinator's now).
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
        """The query of the request, from the beginning or after `cursor`."""
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
    """Where a reader of logs is. `over`: the trailer has come, or, without `follow`, all that there
    was.
    """

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
            # The last lines by themselves: their trailer says where they end, so that what comes
            # after them is not counted among them when the stream is cut.
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
    """A record, a trailer, or None for an empty line: with those a server may show life."""
    if not line.strip():
        return None
    try:
        return _record.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # A trailer comes once, so it is cheaper to try it second than to look at every line.
        try:
            return _trailer.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BadAnswerError(
                f"a line of the log stream cannot be read: {error}",
                "compare `muster version` on both sides",
            ) from error


def _is_final(trailer: LogTrailer, query: LogQuery) -> bool:
    """Whether all that was asked for came. A server that restarts gives a reason, no state."""
    return trailer.end or (not query.follow and trailer.state is not None)
