"""The reader of a stream of events, without a network: its lines, its cuts, its end."""

from collections.abc import Generator, Mapping, Sequence

import msgspec
import pytest

from muster.client import Client, Settings
from muster.client.endpoints import Query
from muster.client.errors import BadAnswerError, UnreachableError
from muster.client.sync_transport import Transport
from muster.http.views import EventsEnd, EventView
from muster.protocol.timestamp import timestamp
from tests.client.fake_coordinator import TOKEN


def event(seq: int) -> list[bytes]:
    view = EventView(seq, timestamp(seq), "JobSubmitted", 1, f"step {seq}", {})
    return [b"id: %d" % seq, b"event: JobSubmitted", b"data: " + msgspec.json.encode(view), b""]


def end(*, final: bool, reason: str = "") -> list[bytes]:
    return [b"event: end", b"data: " + msgspec.json.encode(EventsEnd(final, reason)), b""]


class Script(Transport):
    """The lines of each connection in turn; an exception among them is raised."""

    def __init__(self, *connections: Sequence[bytes | Exception]) -> None:
        self.connections = list(connections)
        self.asked: list[Query] = []

    def lines(
        self, path: str, query: Query, headers: Mapping[str, str] | None = None
    ) -> Generator[bytes, None, None]:
        self.asked.append(query)
        for line in self.connections.pop(0):
            if isinstance(line, Exception):
                raise line
            yield line

    def read(self, after: int = 0) -> list[int]:
        client = Client.of(Settings("http://127.0.0.1:1", TOKEN))
        client._transport = self
        return [view.seq for view in client.follow_events(after=after)]


def test_a_cut_stream_goes_on_behind_the_last_event() -> None:
    script = Script(
        [b"retry: 1000", b"", *event(3), b": nothing new", b"", *event(5)],
        [b"retry: 1000", UnreachableError("", "gone", "")],
        [b"retry: 1000", *event(7), *end(final=False, reason="server restarting")],
        [b"retry: 1000", *end(final=True)],
    )
    assert script.read(after=2) == [3, 5, 7]
    assert [asked["after"] for asked in script.asked] == [2, 5, 5, 7]


def test_a_stream_that_always_ends_at_once_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.client.resumable_stream._PAUSE_MAX_S", 0.0)
    script = Script(*([b"", *end(final=False, reason="odd")] for _ in range(30)))
    with pytest.raises(BadAnswerError, match="odd"):
        script.read()


@pytest.mark.parametrize("data", [b"{}", b"x", b"\xff"])
def test_an_event_that_is_none(data: bytes) -> None:
    with pytest.raises(BadAnswerError, match="cannot be read"):
        Script([b"event: JobSubmitted", b"data: " + data]).read()
