"""The coordinator holds a prefix of the log and in the end all, despite loss, repeats and
delays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.logs.offsets import CHUNK_BYTES, WINDOW_BYTES, LogOffsets
from muster.protocol.ids import TaskId
from muster.protocol.link.log_channel import (
    EndStream,
    LogReport,
    OpenStream,
    StreamId,
    StreamKind,
    TaskLogsEnd,
)

TASK = TaskId("1.1.0")
STREAMS = [StreamId(TASK, StreamKind.STDOUT, rank) for rank in range(3)]

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "send", "send", "send", "ack", "hear", "cut"]),
        st.integers(0, 2),
        st.integers(1, 3_000_000),
    ),
    max_size=60,
)


class Pair:
    """A ledger and a coordinator that answers when it is asked to."""

    def __init__(self) -> None:
        self.ledger = LogOffsets()
        self.files = dict.fromkeys(STREAMS, 0)
        self.stored = dict.fromkeys(STREAMS, 0)
        self.on_the_way: list[LogReport] = []
        self.ended: dict[StreamId, int] = {}
        self.done: list[TaskLogsEnd] = []
        for stream in STREAMS:
            message = self.ledger.add_stream(stream, "path")
            assert message == OpenStream(stream)
        self.on_the_way += self.ledger.reconnect()

    def hear(self) -> bool:
        """Take the next message."""
        if not self.on_the_way:
            return False
        match self.on_the_way.pop(0):
            case OpenStream(stream):
                self.ledger.at(stream, self.stored[stream])
            case EndStream(stream, length):
                assert length == self.stored[stream]
                self.ended[stream] = length
            case TaskLogsEnd() as end:
                assert end.streams == len(self.ended) == 3
                self.done.append(end)
            case other:
                raise AssertionError(other)
        return True

    def send(self) -> bool:
        """Take one turn of the sender. The bytes arrive at once, their acknowledgement does not."""
        stream = self.ledger.next_readable()
        if stream is None or stream.sent is None:
            return False
        count = min(stream.room, self.files[stream.id] - stream.sent)
        assert 0 < stream.room <= CHUNK_BYTES
        if count == 0:
            self.on_the_way += self.ledger.read_to_end(stream)
            return True
        assert stream.sent == self.stored[stream.id]
        assert stream.sent + count - stream.stored <= WINDOW_BYTES
        self.ledger.sent(stream, count)
        self.stored[stream.id] += count
        return True

    def do(self, step: Step) -> None:
        what, which, count = step
        stream = STREAMS[which]
        match what:
            case "grow":
                self.files[stream] += count
                known = self.ledger.stream(stream)
                assert known is not None
                self.ledger.grown(known)
            case "send":
                self.send()
            case "hear":
                self.hear()
            case "ack":
                self.ledger.acked(stream, max(0, self.stored[stream] - count))
            case "cut":
                self.on_the_way = self.ledger.reconnect()
                self.ended.clear()
            case _:
                raise AssertionError(what)

    def settle(self) -> None:
        while self.hear() or self.send():
            for stream in STREAMS:
                self.ledger.acked(stream, self.stored[stream])


@given(before=STEPS, after=STEPS)
def test_all_bytes_arrive_once_and_in_order(before: list[Step], after: list[Step]) -> None:
    pair = Pair()
    for step in before:
        pair.do(step)
    pair.ledger.complete(TASK)
    for step in after:
        if step[0] != "grow":
            pair.do(step)
    pair.settle()
    assert pair.stored == pair.files
    assert pair.ended == pair.files
    assert pair.done
    assert pair.ledger.store(TASK)
    assert not pair.ledger.store(TASK)
    assert not pair.ledger.unfinished
    assert pair.ledger.reconnect() == []


def test_streams_take_turns() -> None:
    pair = Pair()
    while pair.hear():
        pass
    for stream in STREAMS:
        pair.do(("grow", stream.rank or 0, 3_000_000))
    turns = []
    for _ in range(9):
        before = dict(pair.stored)
        pair.send()
        turns += [stream.rank for stream in STREAMS if pair.stored[stream] != before[stream]]
    assert turns == [0, 1, 2] * 3


def test_a_stream_of_a_removed_task_is_sent_no_more() -> None:
    pair = Pair()
    pair.files[STREAMS[0]] = 10
    while pair.hear():
        pass
    pair.ledger.drop(TASK)
    assert pair.ledger.next_readable() is None
    assert pair.ledger.reconnect() == []


def test_bytes_that_were_not_stored_are_sent_again_on_request() -> None:
    ledger = LogOffsets()
    ledger.add_stream(STREAMS[0], "path")
    ledger.reconnect()
    ledger.at(STREAMS[0], 0)
    stream = ledger.next_readable()
    assert stream is not None
    ledger.sent(stream, 1000)
    ledger.acked(STREAMS[0], 400)
    ledger.complete(TASK)
    again = ledger.next_readable()
    assert again is stream
    assert ledger.read_to_end(stream) == [EndStream(STREAMS[0], 1000), TaskLogsEnd(TASK, 1)]
    ledger.at(STREAMS[0], 400)
    assert ledger.next_readable() is stream
    assert (stream.sent, stream.stored) == (400, 400)
    ledger.sent(stream, 600)
    assert ledger.read_to_end(stream) == [EndStream(STREAMS[0], 1000), TaskLogsEnd(TASK, 1)]
    assert ledger.store(TASK)
    ledger.at(STREAMS[0], 0)
    assert ledger.next_readable() is None, "it is all stored"


def test_a_stream_goes_on_after_a_hole_longer_than_its_window() -> None:
    ledger = LogOffsets()
    ledger.add_stream(STREAMS[0], "path")
    ledger.at(STREAMS[0], 0)
    stream = ledger.next_readable()
    assert stream is not None
    hole = 100 * WINDOW_BYTES
    ledger.sent(stream, hole)
    assert ledger.next_readable() is None, "nothing more before it is stored"
    ledger.acked(STREAMS[0], hole)
    assert ledger.next_readable() is stream
    assert stream.room == CHUNK_BYTES


def test_a_log_ends_without_the_streams_that_are_not_wanted() -> None:
    ledger = LogOffsets()
    for stream in STREAMS[:2]:
        ledger.add_stream(stream, "path")
    ledger.reconnect()
    ledger.at(STREAMS[0], 0)
    assert ledger.refuse(STREAMS[1]) == []
    assert ledger.add_stream(STREAMS[1], "path") is None, "it is not offered again"
    assert ledger.reconnect() == [OpenStream(STREAMS[0])]
    ledger.at(STREAMS[0], 0)
    ledger.complete(TASK)
    rest = ledger.next_readable()
    assert rest is not None
    assert ledger.read_to_end(rest) == [EndStream(STREAMS[0], 0), TaskLogsEnd(TASK, 1)]
    assert ledger.store(TASK)


def test_a_log_of_which_nothing_is_wanted_ends_at_once() -> None:
    ledger = LogOffsets()
    ledger.add_stream(STREAMS[0], "path")
    ledger.reconnect()
    ledger.complete(TASK)
    assert ledger.refuse(STREAMS[0]) == [TaskLogsEnd(TASK, 0)]
    assert ledger.refuse(STREAMS[0]) == []
