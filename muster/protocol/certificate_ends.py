"""The warning that a certificate ends soon."""

from __future__ import annotations

from typing import Final

from muster.protocol.timestamp import timestamp

_SOON_S: Final = 30 * 86400.0
# Certificates are renewed when a third of the lifetime is left. The rest is slack.
_LEFT: Final = 0.3


def end_warning(whose: str, begins: float, expires: float, now: float) -> str:
    """Return a warning if the certificate ends within 30 days, or within 0.3 of its lifetime if
    that is less; else "". Times are UTC seconds.
    """
    if expires - now > min(_SOON_S, (expires - begins) * _LEFT):
        return ""
    ends = "ended" if expires <= now else "ends"
    return f"{whose} {ends} at {timestamp(expires):%Y-%m-%d %H:%M} UTC"
