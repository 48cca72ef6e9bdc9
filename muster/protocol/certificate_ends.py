"""The warning that a certificate ends soon."""

from __future__ import annotations

from typing import Final

from muster.protocol.timestamp import timestamp

_DAY_S: Final = 86400.0
_SOON_S: Final = 30 * _DAY_S
# A node's certificate is renewed when a third of the lifetime is left. A renewal may take a day, or
# a thirtieth of a short lifetime, before it counts as missed.
_LEFT: Final = 1 / 3
_SLACK: Final = 1 / 30


def end_warning(whose: str, expires: float, now: float) -> str:
    """Return a warning if the certificate ends within 30 days, else "". Times are UTC seconds."""
    if expires - now > _SOON_S:
        return ""
    ends = "ended" if expires <= now else "ends"
    return f"{whose} {ends} at {timestamp(expires):%Y-%m-%d %H:%M} UTC"


def missed_renewal_warning(whose: str, begins: float, expires: float, now: float) -> str:
    """Return a warning if a node's certificate ends within 30 days and its renewal, at two thirds
    of the lifetime, was missed; else "". Times are UTC seconds.
    """
    lifetime_s = expires - begins
    if expires - now > lifetime_s * _LEFT - min(_DAY_S, lifetime_s * _SLACK):
        return ""
    return end_warning(whose, expires, now)
