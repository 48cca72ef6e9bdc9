"""Frames of the log connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol import logs
from muster.protocol.codec import ProtocolError, UnknownMessage
from muster.protocol.ids import NodeName, TaskId

STREAM = logs.StreamId(TaskId("1.1.0"), logs.StreamKind.STDOUT, 3)


@given(st.binary(max_size=300), st.integers(0, 1 << 60))
def test_chunks_survive(data: bytes, offset: int) -> None:
    chunk = logs.Chunk(STREAM, offset, 1.5)
    found, view = logs.decode_chunk(logs.encode_chunk(chunk, data))
    assert (found, bytes(view)) == (chunk, data)


@given(st.binary(max_size=64))
def test_arbitrary_frames_raise_nothing_else(frame: bytes) -> None:
    for decode in (logs.decode_chunk, logs.decode_log_report, logs.decode_log_command):
        try:
            decode(frame)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "message",
    [
        logs.LogHello(NodeName("n"), "id"),
        logs.OpenStream(STREAM),
        logs.EndStream(STREAM, 9),
        logs.TaskLogsEnd(TaskId("1.1.0"), 2),
    ],
)
def test_reports_survive(message: logs.LogReport) -> None:
    assert logs.decode_log_report(logs.encode_text(message)) == message


@pytest.mark.parametrize(
    "message",
    [logs.StreamAt(STREAM, 4), logs.LogAck(STREAM, 4), logs.TaskLogsStored(TaskId("1.1.0"))],
)
def test_commands_survive(message: logs.LogCommand) -> None:
    assert logs.decode_log_command(logs.encode_text(message)) == message


def test_a_message_of_a_later_version_is_told_from_one_that_is_broken() -> None:
    for decode in (logs.decode_log_report, logs.decode_log_command):
        with pytest.raises(UnknownMessage):
            decode('{"type":"of_the_future","stream":4}')
        for broken in ('{"type":"open"}', '{"kind":"open"}', "[]"):
            with pytest.raises(ProtocolError) as refused:
                decode(broken)
            assert not isinstance(refused.value, UnknownMessage)
