"""Conversion between bytes and messages, with limits. Only this module knows the wire format."""

from __future__ import annotations

import re
from typing import Final, TypeVar, get_args

import msgspec

from muster.protocol.link.control_channel import Command, Report
from muster.protocol.link.report_bounds import bounded

FRAME_BYTES_MAX: Final = 1 << 20
COMMAND_BYTES_MAX: Final = 8 << 20
"""Limit of the coordinator's messages: the plan of a gang contains the names of all its nodes."""


class ProtocolError(Exception):
    """The peer sent an invalid message; the connection is unusable."""


class FrameTooLarge(ProtocolError):
    """A message exceeds the frame size."""


class UnknownMessage(ProtocolError):
    """A valid message of a type from a later protocol: count it, and continue without it.

    A peer sends essential messages only in a common protocol version. `seq` is its number, 0 if the
    connection does not number messages.
    """

    def __init__(self, kind: str, seq: int = 0) -> None:
        super().__init__(
            f"a message of the type {kind[:60]!r}, which this version does not support"
        )
        self.kind = kind
        self.seq = seq


class ReportFrame(msgspec.Struct, frozen=True):
    seq: int
    body: Report


class CommandFrame(msgspec.Struct, frozen=True):
    seq: int
    body: Command


class _Tag(msgspec.Struct, frozen=True):
    type: str


class _Outline(msgspec.Struct, frozen=True):
    """Fields of a frame in every version."""

    seq: int
    body: _Tag


_Frame = TypeVar("_Frame", ReportFrame, CommandFrame)

_encoder: Final = msgspec.json.Encoder()
_report_decoder: Final = msgspec.json.Decoder(ReportFrame)
_command_decoder: Final = msgspec.json.Decoder(CommandFrame)
_outline_decoder: Final = msgspec.json.Decoder(_Outline)
_tag_decoder: Final = msgspec.json.Decoder(_Tag)
_KNOWN: Final = {
    str(kind.__struct_config__.tag) for kind in (*get_args(Report), *get_args(Command))
}

# Outside of strings, and no digits of a fraction.
_LONG_NUMBER: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|(?<![.\d])(\d{20,})')
_DIGITS: Final = re.compile(r"\d{20}")


def encode(frame: ReportFrame | CommandFrame) -> bytes:
    """Encode a frame as UTF-8 JSON. Raises FrameTooLarge."""
    data = _encoder.encode(frame)
    most = COMMAND_BYTES_MAX if isinstance(frame, CommandFrame) else FRAME_BYTES_MAX
    if len(data) > most:
        raise FrameTooLarge(f"a frame of {len(data)} bytes is over the limit of {most}")
    return data


def decode_report(data: bytes | str) -> ReportFrame:
    """Decode a frame from an agent, cut to the bounds of reports. Raises UnknownMessage and
    ProtocolError.
    """
    return bounded(_decode(_report_decoder, data, FRAME_BYTES_MAX))


def decode_command(data: bytes | str) -> CommandFrame:
    """Decode a frame from the coordinator. Raises UnknownMessage and ProtocolError."""
    return _decode(_command_decoder, data, COMMAND_BYTES_MAX)


def _decode(decoder: msgspec.json.Decoder[_Frame], data: bytes | str, most: int) -> _Frame:
    if len(data) > most:
        raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {most}")
    try:
        refuse_long_numbers(data)
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _raise_if_unknown(data)
        raise ProtocolError(f"not a message of this protocol: {error}") from error


def refuse_long_numbers(data: bytes | str) -> None:
    """Raise ProtocolError if a message has a number of more than 19 digits.

    Python counts without end: such a number is kept, and later it fits into no file offset, no
    database and no text of a number.
    """
    text = data if isinstance(data, str) else data.decode()
    if _DIGITS.search(text) is None:
        return
    for found in _LONG_NUMBER.finditer(text):
        if found[1] is not None:
            raise ProtocolError(f"a number of {len(found[1])} digits; 19 are the most")


def unknown_type(data: bytes | str, known: set[str]) -> str | None:
    """Return the type of a message that is not `known`; None if it is no message."""
    try:
        kind = _tag_decoder.decode(data).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if kind in known else kind


def _raise_if_unknown(data: bytes | str) -> None:
    try:
        outline = _outline_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if outline.body.type not in _KNOWN:
        raise UnknownMessage(outline.body.type, outline.seq)
