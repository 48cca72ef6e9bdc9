"""Age of a UTC date, correct even if the wall clock was set since."""

from dataclasses import dataclass
from typing import Final

from muster.protocol.instant import Instant

# Smaller changes of the clock are ignored, because ages are hours at least.
_SET_S: Final = 60.0


@dataclass(slots=True)
class _Span:
    """Span of monotonic time without a change of the wall clock, and the clock's lead in it."""

    lead: float
    since: float
    until: float


class WallClockAge:
    """Ages since this process started: a date set by a wrong clock (1970, say) is corrected."""

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._spans = [_Span(now.wall - now.mono, now.mono, now.mono)]

    def look(self, now: Instant) -> None:
        """Record the time. Call it every minute or so: dates in between may be of either clock."""
        self._now = now
        last = self._spans[-1]
        looked, last.until = last.until, now.mono
        lead = now.wall - now.mono
        if abs(lead - last.lead) > _SET_S:
            self._spans.append(_Span(lead, looked, now.mono))

    def of(self, date: float) -> float:
        """Return the seconds from a date (UTC seconds) to the last `look`."""
        moments = (
            date - span.lead
            for span in self._spans
            if span.since - _SET_S <= date - span.lead <= span.until + _SET_S
        )
        return min([self._now.wall - date, *(self._now.mono - moment for moment in moments)])
