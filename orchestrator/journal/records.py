"""One fact of the journal as a row: its spelling on disk, and the way back."""

from dataclasses import dataclass
from typing import Final

import msgspec

from orchestrator.core.facts import SCHEMA, Durable
from orchestrator.journal.errors import CorruptJournalError, NewerJournalError

Row = tuple[float, int, str, int | None, bytes]
"""at (UTC seconds), schema, kind, job, body: the columns of a fact after its seq."""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Durable]] = msgspec.json.Decoder(Durable)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A fact with its place in the journal (from 1) and when it was decided (UTC seconds)."""

    seq: int
    at: float
    fact: Durable


def to_row(fact: Durable, at: float) -> Row:
    return (at, SCHEMA, type(fact).__name__, getattr(fact, "job", None), _encoder.encode(fact))


def from_row(seq: int, at: float, schema: int, body: bytes) -> Recorded:
    """Read one row. Raises NewerJournalError and CorruptJournalError, which name the record."""
    if schema > SCHEMA:
        raise NewerJournalError(
            f"record {seq} of the journal has schema {schema} and this Muster reads up to "
            f"{SCHEMA}; start the version that wrote it, or a newer one"
        )
    try:
        return Recorded(seq, at, _decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptJournalError(
            f"record {seq} of the journal cannot be read ({error}); restore the state folder "
            "from a backup"
        ) from error
