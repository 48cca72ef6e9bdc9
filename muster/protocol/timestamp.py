"""A time as the HTTP API says it: RFC 3339, in UTC with `Z`. Durations are float seconds, `_s`.

Inside (facts, messages, cores) a time is seconds since 1970, UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias

import msgspec

Timestamp: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""Always aware: msgspec refuses a text without its zone, and writes UTC as `Z`."""

_FIRST_S: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST_S: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 (UTC), to the microsecond. What no calendar has (a node's clock may say
    anything) becomes the first or the last moment that one has.
    """
    return datetime.fromtimestamp(min(max(_FIRST_S, seconds), _LAST_S), UTC)


def maybe_timestamp(seconds: float | None) -> Timestamp | None:
    """As `timestamp`; None is what has not happened."""
    return None if seconds is None else timestamp(seconds)
