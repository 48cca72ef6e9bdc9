"""Times of the HTTP API: RFC 3339, in UTC with `Z`. Durations are float seconds, `_s`.

Internally (facts, messages, cores), a time is seconds since 1970, UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, TypeAlias

import msgspec

from muster.spec.errors import InvalidValueError
from muster.spec.units import duration

Timestamp: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""Always aware: msgspec refuses a text without a time zone, and writes UTC as `Z`."""

_MOMENT_HINT: Final = "write `10m`, `2h`, or `2026-11-22T01:30:00Z`"
_FIRST_S: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_STEP: Final = timedelta(microseconds=1)
_LAST_S: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def timestamp(seconds: float) -> Timestamp:
    """Convert seconds since 1970 (UTC), rounded down to microseconds, so that a query for
    everything since a printed time includes it. A time beyond the calendar (a node's clock may be
    anything) becomes the first or the last possible one.
    """
    given = min(max(_FIRST_S, seconds), _LAST_S)
    made = datetime.fromtimestamp(given, UTC)
    return made - _STEP if made.timestamp() > given else made


def maybe_timestamp(seconds: float | None) -> Timestamp | None:
    """Convert like `timestamp`; None stays None."""
    return None if seconds is None else timestamp(seconds)


def moment(text: str, now: float) -> float:
    """Return the UTC seconds of a time in RFC 3339 (`2026-11-22T01:30:00Z`), or of a duration
    before `now`.

    Raises RefusedError, whose message shows the format.
    """
    typed = text.strip()
    if "T" not in typed.upper() and ":" not in typed and "-" not in typed:
        return now - duration(typed)
    try:
        found = datetime.fromisoformat(typed)
    except ValueError:
        raise InvalidValueError("is neither a duration nor a time", _MOMENT_HINT) from None
    if found.tzinfo is None:
        raise InvalidValueError("is a time without a time zone", f"{_MOMENT_HINT} (Z is UTC)")
    return found.timestamp()
