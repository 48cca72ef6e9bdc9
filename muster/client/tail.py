"""A job's logs as one unbroken sequence, over as many connections as it takes.

The server ends every stream with a trailer. A stream without one was cut, and one whose trailer
says that more will come was let go (a restart): both go on at the cursor of the last record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from muster.client.errors import BadAnswerError, ClientError, UnreachableError
from muster.client.transport import Query
from muster.protocol.http import LogRecord, LogTrailer

Entry: TypeAlias = LogRecord | LogTrailer
Open: TypeAlias = Callable[[Query], Iterator[bytes]]
Persist: TypeAlias = Callable[[Callable[[], Iterator[bytes]]], Iterator[bytes]]

_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 3.0
# Connections in a row that open and then bring nothing: that is no restart any more.
_BARREN_MAX: Final = 20

_record: Final = msgspec.json.Decoder(LogRecord)
_trailer: Final = msgspec.json.Decoder(LogTrailer)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which log bytes: None is all ranks, nodes or streams, and the last attempt.

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


def read_logs(open_stream: Open, query: LogQuery, persist: Persist) -> Iterator[Entry]:
    """The records, and the trailer last. `persist` repeats what fails in passing.

    Raises ClientError once the coordinator stays away or answers nonsense.
    """
    cursor: str | None = None
    barren = 0  # connections in a row that brought no record
    while True:
        before, reason = cursor, ""
        lines = persist(lambda at=cursor: _opened(open_stream, query.parameters(at)))  # type: ignore[misc]
        try:
            for line in lines:
                entry = _entry(line)
                if entry is None:
                    continue
                cursor = entry.cursor or cursor
                if isinstance(entry, LogRecord):
                    yield entry
                elif _is_final(entry, query):
                    yield entry
                    return
                else:
                    reason = entry.reason or ""
        except ClientError as error:
            if not error.passing:
                raise
        barren = barren + 1 if cursor == before else 0
        if barren > _BARREN_MAX:
            raise BadAnswerError(
                f"the coordinator ends the log stream again and again: {reason or 'no word why'}",
                "its own log says why",
            )
        _pause(barren)


def _opened(open_stream: Open, parameters: Query) -> Iterator[bytes]:
    """Connect now, so that a failure to connect is met by whoever repeats it, not by the reader."""
    lines = open_stream(parameters)
    first = next(lines, None)
    if first is None:
        raise UnreachableError("", "the coordinator closed the log stream", "try again")
    return _chain(first, lines)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


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


def _pause(barren: int) -> None:
    if barren:
        limit = min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(barren, 10))
        time.sleep(random.uniform(0, limit))  # noqa: S311 - spreads readers, keeps no secret
