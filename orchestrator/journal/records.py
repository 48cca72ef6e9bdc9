"""Encoding of a fact as a row of the journal, and decoding."""

import zlib
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec

from orchestrator.core.facts.jobs import DURABLE, SCHEMA, Fact
from orchestrator.journal.errors import CorruptJournalError, NewerJournalError

Row = tuple[int, float, int, str, int | None, bytes, int]
"""Columns of a fact: seq, at (UTC seconds), schema, kind, job, body, crc."""

COLUMNS: Final = "seq, at, schema, kind, job, body, crc"

_encoder: Final = msgspec.json.Encoder()
_KINDS: Final = {kind.__name__ for kind in DURABLE}
_decoder: Final[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(reduce(or_, DURABLE))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A fact with its place in the journal (from 1) and when it was decided (UTC seconds)."""

    seq: int
    at: float
    fact: Fact


def to_row(seq: int, fact: Fact, at: float) -> Row:
    kind, job = type(fact).__name__, getattr(fact, "job", None)
    body = _encoder.encode(fact)
    return (seq, at, SCHEMA, kind, job, body, _crc(seq, at, SCHEMA, kind, job, body))


def from_row(seq: Any, at: Any, schema: Any, kind: Any, job: Any, body: Any, crc: Any) -> Recorded:
    """Decode one row, which may come from a damaged file. Rows of layout 1 have no checksum (None).

    Raises NewerJournalError and CorruptJournalError, which name the record.
    """
    if crc is not None and crc != _crc(seq, at, schema, kind, job, body):
        raise CorruptJournalError(
            f"record {seq} of the journal is not as it was written (its checksum differs)"
        )
    if isinstance(schema, int) and schema > SCHEMA:
        raise NewerJournalError(
            f"record {seq} of the journal has schema {schema} and this Muster reads up to "
            f"{SCHEMA}; start the version that wrote it, or a newer one"
        )
    try:
        return Recorded(seq, at, _decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        if crc is not None and kind not in _KINDS:
            # The checksum is right, so a release with more kinds of facts wrote it.
            raise NewerJournalError(
                f"record {seq} of the journal is a {str(kind)[:60]}, which this Muster does not "
                "know; start the version that wrote it, or a newer one"
            ) from error
        raise CorruptJournalError(
            f"record {seq} of the journal cannot be read ({error})"
        ) from error


def _crc(seq: object, at: object, schema: object, kind: object, job: object, body: object) -> int:
    """Checksum of all columns; -1, which no row has, if `body` is not bytes."""
    if not isinstance(body, bytes):
        return -1
    return zlib.crc32(body, zlib.crc32(f"{seq} {at!r} {schema} {kind} {job} ".encode()))
