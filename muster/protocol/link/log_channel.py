"""The bulk connection: log bytes from an agent's files to the coordinator's store.

A stream is one file of one task. Its bytes are identified by their offset, so that repeated bytes
are recognized and bytes that were not stored are sent again. Data travels as binary frames: the
length of the header (4 bytes, big endian), the header (JSON, `Chunk`), then the bytes. Everything
else travels as text frames.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, get_args

import msgspec

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import (
    ProtocolError,
    UnknownMessage,
    refuse_long_numbers,
    unknown_type,
)

RANKS_PER_NODE_MAX: Final = 1024
"""Limit of `nproc_per_node`, and of a node's GPUs."""
STREAMS_PER_TASK_MAX: Final = 2 * RANKS_PER_NODE_MAX + 3
"""Output and error of each rank, and three streams of the node. A plan may allow fewer
(`streams_max`).
"""
CHUNK_BYTES_MAX: Final = 256 * 1024
HEADER_BYTES_MAX: Final = 1024
_LENGTH: Final = struct.Struct(">I")


class StreamKind(enum.Enum):
    STDOUT = "stdout"
    STDERR = "stderr"
    LAUNCHER = "launcher"
    SETUP = "setup"
    NCCL = "nccl"


class StreamId(msgspec.Struct, frozen=True, omit_defaults=True):
    """A log file: of a global rank, or (`rank` None) of the node's launcher or setup."""

    task: TaskId
    kind: StreamKind
    rank: int | None = None


class LogHello(msgspec.Struct, frozen=True, tag="log_hello"):
    """First message of an agent on the bulk connection."""

    node: NodeName
    agent_id: str


class OpenStream(msgspec.Struct, frozen=True, tag="open"):
    """The agent has this stream, and asks for the offset to send from."""

    stream: StreamId


class Hole(msgspec.Struct, frozen=True, tag="hole"):
    """Bytes of the stream that were never written: the file has a hole of `length` bytes at
    `offset`.
    """

    stream: StreamId
    offset: int
    length: int
    ts: float


class EndStream(msgspec.Struct, frozen=True, tag="end"):
    """The stream's file is complete; `length` is its size in bytes."""

    stream: StreamId
    length: int


class TaskLogsEnd(msgspec.Struct, frozen=True, tag="task_end"):
    """All streams of the task have ended, and none will be opened."""

    task: TaskId
    streams: int


class Chunk(msgspec.Struct, frozen=True):
    """Header of a binary frame: bytes of `stream` from `offset`, read at `ts` (UTC seconds)."""

    stream: StreamId
    offset: int
    ts: float


class StreamAt(msgspec.Struct, frozen=True, tag="at"):
    """The coordinator holds `offset` bytes of the stream; send from there."""

    stream: StreamId
    offset: int


class LogAck(msgspec.Struct, frozen=True, tag="ack"):
    """All bytes of the stream before `offset` are on the coordinator's disk."""

    stream: StreamId
    offset: int


class NotWanted(msgspec.Struct, frozen=True, tag="not_wanted"):
    """The coordinator accepts no byte of this stream, now or later: the log ends without it."""

    stream: StreamId
    why: str


class TaskLogsStored(msgspec.Struct, frozen=True, tag="task_stored"):
    """Everything of the task is on disk: the agent may remove its files."""

    task: TaskId


LogReport = LogHello | OpenStream | Hole | EndStream | TaskLogsEnd
LogCommand = StreamAt | LogAck | NotWanted | TaskLogsStored

_encoder: Final = msgspec.json.Encoder()
_chunk_decoder: Final = msgspec.json.Decoder(Chunk)
_report_decoder: Final[msgspec.json.Decoder[LogReport]] = msgspec.json.Decoder(LogReport)
_command_decoder: Final[msgspec.json.Decoder[LogCommand]] = msgspec.json.Decoder(LogCommand)
_KNOWN: Final = {
    str(kind.__struct_config__.tag) for kind in (*get_args(LogReport), *get_args(LogCommand))
}


def streams_max(ranks: int) -> int:
    """Return the maximum number of streams of a task with output files for `ranks` different
    ranks.
    """
    return min(2 * ranks + len(StreamKind) - 2, STREAMS_PER_TASK_MAX)


def encode_text(message: LogReport | LogCommand) -> str:
    return _encoder.encode(message).decode()


def encode_chunk(chunk: Chunk, data: bytes | memoryview) -> bytes:
    """Encode a binary frame."""
    header = _encoder.encode(chunk)
    return b"".join((_LENGTH.pack(len(header)), header, data))


def decode_chunk(frame: bytes) -> tuple[Chunk, memoryview]:
    """Decode the header and bytes of a binary frame. Raises ProtocolError."""
    if len(frame) < _LENGTH.size:
        raise ProtocolError("a log frame of fewer than 4 bytes")
    (size,) = _LENGTH.unpack_from(frame)
    if size > HEADER_BYTES_MAX or _LENGTH.size + size > len(frame):
        raise ProtocolError(f"a log frame of {len(frame)} bytes names a header of {size}")
    view = memoryview(frame)
    header = frame[_LENGTH.size : _LENGTH.size + size]
    try:
        refuse_long_numbers(header)
        chunk = _chunk_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a log chunk: {error}") from error
    return chunk, view[_LENGTH.size + size :]


def decode_log_report(text: str | bytes) -> LogReport:
    """Decode a text frame from an agent. Raises UnknownMessage and ProtocolError."""
    try:
        refuse_long_numbers(text)
        return _report_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if kind := unknown_type(text, _KNOWN):
            raise UnknownMessage(kind) from error
        raise ProtocolError(f"not a message of the log connection: {error}") from error


def decode_log_command(text: str | bytes) -> LogCommand:
    """Decode a text frame from the coordinator. Raises UnknownMessage and ProtocolError."""
    try:
        return _command_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if kind := unknown_type(text, _KNOWN):
            raise UnknownMessage(kind) from error
        raise ProtocolError(f"not a message of the log connection: {error}") from error
