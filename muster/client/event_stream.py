"""A resumable stream of events: none is missing or repeated."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.client.endpoints import Query
from muster.client.errors import BadAnswerError
from muster.client.resumable_stream import ResumableStream
from muster.http.views import EventsEnd, EventView

_view: Final = msgspec.json.Decoder(EventView)
_end: Final = msgspec.json.Decoder(EventsEnd)


class EventStream(ResumableStream[EventView]):
    """The position of an event reader. `over`: the job has ended, and all of its events have
    arrived."""

    what = "stream of events"

    def __init__(self, after: int | str = 0) -> None:
        """Start after the event `after`, its sequence number or its id."""
        super().__init__()
        self._after: int | str = after
        self._kind = ""

    def place(self) -> object:
        return self._after

    def query(self) -> Query:
        """Return the query for `/v1/events` or `/v1/jobs/{id}/events`."""
        self._kind = ""
        return {"follow": 1, "after": self._after}

    def take(self, line: bytes) -> EventView | None:
        name, _, value = line.rstrip(b"\r").partition(b": ")
        match name:
            case b"event":
                self._kind = value.decode("ascii", "replace")
            case b"data":
                return self._data(value)
            case _:
                pass  # a heartbeat, an id that is in the data too, or the end of an event
        return None

    def _data(self, text: bytes) -> EventView | None:
        try:
            if self._kind == "end":
                end = _end.decode(text)
                self.over, self.reason = end.final, end.reason
                return None
            view = _view.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswerError(
                f"an event cannot be read: {error}", "compare `muster version` on both sides"
            ) from error
        self._after = view.id or view.seq
        return view
