"""Bytes to messages and back, with limits; the only place that knows the wire's spelling."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from muster.protocol.messages import Command, Report

FRAME_BYTES_MAX: Final = 1 << 20
COMMAND_BYTES_MAX: Final = 8 << 20
"""Of what the coordinator says: the plan of a gang has its every node's names in it."""


class ProtocolError(Exception):
    """The peer said something that cannot be understood; the connection is of no more use."""


class FrameTooLarge(ProtocolError):
    """What is to be said fits no frame."""


class ReportFrame(msgspec.Struct, frozen=True):
    seq: int
    body: Report


class CommandFrame(msgspec.Struct, frozen=True):
    seq: int
    body: Command


_Frame = TypeVar("_Frame", ReportFrame, CommandFrame)

_encoder: Final = msgspec.json.Encoder()
_report_decoder: Final = msgspec.json.Decoder(ReportFrame)
_command_decoder: Final = msgspec.json.Decoder(CommandFrame)


def encode(frame: ReportFrame | CommandFrame) -> bytes:
    """One frame as UTF-8 JSON. Raises FrameTooLarge."""
    data = _encoder.encode(frame)
    most = COMMAND_BYTES_MAX if isinstance(frame, CommandFrame) else FRAME_BYTES_MAX
    if len(data) > most:
        raise FrameTooLarge(f"a frame of {len(data)} bytes is over the limit of {most}")
    return data


def decode_report(data: bytes | str) -> ReportFrame:
    """Read a frame that an agent sent. Raises ProtocolError."""
    return _decode(_report_decoder, data, FRAME_BYTES_MAX)


def decode_command(data: bytes | str) -> CommandFrame:
    """Read a frame that the coordinator sent. Raises ProtocolError."""
    return _decode(_command_decoder, data, COMMAND_BYTES_MAX)


def _decode(decoder: msgspec.json.Decoder[_Frame], data: bytes | str, most: int) -> _Frame:
    if len(data) > most:
        raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {most}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a message of this protocol: {error}") from error
