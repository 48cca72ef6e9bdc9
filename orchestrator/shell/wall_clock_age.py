"""How long ago something was that has only a date, where the wall clock may have been set since."""

from dataclasses import dataclass
from typing import Final

from muster.protocol.instant import Instant

# So much and more the clock was set; less is no matter where ages are hours at the least.
_SET_S: Final = 60.0


@dataclass(slots=True)
class _Span:
    """A part of this life, by `mono`, in which nobody set the wall clock, and that clock's lead."""

    lead: float
    since: float
    until: float


class WallClockAge:
    """From `now` on: a date of this life, from 1970 say, is no older than the other clock says."""

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._spans = [_Span(now.wall - now.mono, now.mono, now.mono)]

    def look(self, now: Instant) -> None:
        """It is `now`; to be called every minute or so, as dates in between are of either clock."""
        self._now = now
        last = self._spans[-1]
        looked, last.until = last.until, now.mono
        lead = now.wall - now.mono
        if abs(lead - last.lead) > _SET_S:
            self._spans.append(_Span(lead, looked, now.mono))

    def of(self, date: float) -> float:
        """Seconds from a date (UTC seconds) to the last look."""
        moments = (
            date - span.lead
            for span in self._spans
            if span.since - _SET_S <= date - span.lead <= span.until + _SET_S
        )
        return min([self._now.wall - date, *(self._now.mono - moment for moment in moments)])
