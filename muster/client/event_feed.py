"""Events as they come, over as many connections as it takes: none is missing, none comes twice.

`EventFeed` does no I/O: it says what the next connection asks for and what its lines mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from muster.client.errors import BadAnswerError, ClientError, UnreachableError
from muster.protocol.http import EventsEnd, EventView

Parameters: TypeAlias = Mapping[str, str | int | float | None]
Open: TypeAlias = Callable[[Parameters], Iterator[bytes]]
Persist: TypeAlias = Callable[[Callable[[], Iterator[bytes]]], Iterator[bytes]]

_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 3.0
# Connections in a row that open and then bring nothing: that is no restart any more.
_BARREN_MAX: Final = 20

_view: Final = msgspec.json.Decoder(EventView)
_end: Final = msgspec.json.Decoder(EventsEnd)


class EventFeed:
    """Where a reader of events is. `over`: the job has ended, and all of its events came."""

    def __init__(self, after: int = 0) -> None:
        """Begin behind sequence number `after`."""
        self.over = False
        self._after = after
        self._before = after
        self._barren = 0
        self._kind = ""
        self._reason = ""

    def parameters(self) -> Parameters:
        """The query of the next connection, to `/v1/events` or `/v1/jobs/{id}/events`."""
        self._before, self._kind, self._reason = self._after, "", ""
        return {"follow": 1, "after": self._after}

    def take(self, line: bytes) -> EventView | None:
        """What a line of the stream means; None where nothing. Raises BadAnswerError."""
        name, _, value = line.rstrip(b"\r").partition(b": ")
        match name:
            case b"event":
                self._kind = value.decode("ascii", "replace")
            case b"data":
                return self._data(value)
            case _:
                pass  # a heartbeat, an id that the data have too, the end of an event
        return None

    def pause_s(self) -> float:
        """How long to wait before the next connection, now that one has ended.

        Raises BadAnswerError when too many have brought nothing.
        """
        self._barren = self._barren + 1 if self._after == self._before else 0
        if self._barren > _BARREN_MAX:
            raise BadAnswerError(
                "the coordinator ends the stream of events again and again: "
                f"{self._reason or 'no word why'}",
                "its own log says why",
            )
        if not self._barren:
            return 0.0
        limit = min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(self._barren, 10))
        return random.uniform(0, limit)  # noqa: S311 - spreads readers, keeps no secret

    def _data(self, text: bytes) -> EventView | None:
        try:
            if self._kind == "end":
                end = _end.decode(text)
                self.over, self._reason = end.final, end.reason
                return None
            view = _view.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError(
                f"an event cannot be read: {error}", "compare `muster version` on both sides"
            ) from error
        self._after = view.seq
        return view


def read_events(
    open_stream: Open, persist: Persist, sleep: Callable[[float], None], after: int = 0
) -> Iterator[EventView]:
    """The events behind `after` as they come, until the job has ended (of all jobs: for ever).

    `persist` repeats what fails in passing. Raises ClientError once the coordinator stays away or
    answers nonsense.
    """
    feed = EventFeed(after)
    while True:
        parameters = feed.parameters()
        lines = persist(lambda asked=parameters: _opened(open_stream, asked))  # type: ignore[misc]
        try:
            for line in lines:
                view = feed.take(line)
                if view is not None:
                    yield view
        except ClientError as error:
            if not error.passing:
                raise
        if feed.over:
            return
        sleep(feed.pause_s())


def _opened(open_stream: Open, parameters: Parameters) -> Iterator[bytes]:
    """Connect now, so that a failure to connect is met by whoever repeats it, not by the reader."""
    lines = open_stream(parameters)
    first = next(lines, None)
    if first is None:
        raise UnreachableError("", "the coordinator closed the stream of events", "try again")
    return _chain(first, lines)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
