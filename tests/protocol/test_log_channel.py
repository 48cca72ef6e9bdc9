"""Frames of the log connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link import log_channel
from muster.protocol.link.codec import ProtocolError, UnknownMessage

STREAM = log_channel.StreamId(TaskId("1.1.0"), log_channel.StreamKind.STDOUT, 3)


@given(st.binary(max_size=300), st.integers(0, 1 << 60))
def test_chunks_survive(data: bytes, offset: int) -> None:
    chunk = log_channel.Chunk(STREAM, offset, 1.5)
    found, view = log_channel.decode_chunk(log_channel.encode_chunk(chunk, data))
    assert (found, bytes(view)) == (chunk, data)


@given(st.binary(max_size=64))
def test_arbitrary_frames_raise_nothing_else(frame: bytes) -> None:
    for decode in (
        log_channel.decode_chunk,
        log_channel.decode_log_report,
        log_channel.decode_log_command,
    ):
        try:
            decode(frame)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "message",
    [
        log_channel.LogHello(NodeName("n"), "id"),
        log_channel.OpenStream(STREAM),
        log_channel.EndStream(STREAM, 9),
        log_channel.TaskLogsEnd(TaskId("1.1.0"), 2),
    ],
)
def test_reports_survive(message: log_channel.LogReport) -> None:
    assert log_channel.decode_log_report(log_channel.encode_text(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        log_channel.StreamAt(STREAM, 4),
        log_channel.LogAck(STREAM, 4),
        log_channel.TaskLogsStored(TaskId("1.1.0")),
    ],
)
def test_commands_survive(message: log_channel.LogCommand) -> None:
    assert log_channel.decode_log_command(log_channel.encode_text(message)) == message


def test_a_number_of_more_than_19_digits_is_refused() -> None:
    """No file has such an offset."""
    header = b'{"stream": {"task": "1.1.0", "kind": "stdout"}, "offset": %s, "ts": 0}' % (b"1" * 20)
    with pytest.raises(ProtocolError, match="digits"):
        log_channel.decode_chunk(len(header).to_bytes(4, "big") + header)
    with pytest.raises(ProtocolError, match="digits"):
        log_channel.decode_log_report('{"type": "hole", "offset": %s}' % ("1" * 20))


def test_a_message_of_a_later_version_is_distinguished_from_a_broken_one() -> None:
    for decode in (log_channel.decode_log_report, log_channel.decode_log_command):
        with pytest.raises(UnknownMessage):
            decode('{"type":"of_the_future","stream":4}')
        for broken in ('{"type":"open"}', '{"kind":"open"}', "[]"):
            with pytest.raises(ProtocolError) as refused:
                decode(broken)
            assert not isinstance(refused.value, UnknownMessage)
