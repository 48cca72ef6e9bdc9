"""What is removed for its age is gone for good, and the clock may be wrong: when nothing is
removed, and how much at the most.

A clock that is wrong once, for a minute, would otherwise remove the history of a year.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.spec.units import duration_text

APART_S: Final = 86400.0
"""So far apart two clocks may be without doubt."""
_HOUR_S: Final = 3600.0
_LEAST: Final = 10
_SHARE: Final = 1 / 24


def clock_doubt(since_record_s: float, ahead_s: Sequence[float]) -> str:
    """Why nothing is to be removed for its age, as a sentence; "" where the clock is not in doubt.

    `since_record_s` is how much later than the last record of the life before this one began, by
    the wall clock as it is now. Hours without a coordinator are in it, so that the agents, most of
    which have the right time, decide: `ahead_s` says of each that is connected how far its wall
    clock is ahead of ours.
    """
    apart = sum(abs(ahead) > APART_S for ahead in ahead_s)
    if apart > len(ahead_s) - apart:
        return (
            f"the clocks of {apart} of {len(ahead_s)} connected nodes are more than a day off the "
            "coordinator's"
        )
    confirmed = apart < len(ahead_s) - apart
    if abs(since_record_s) > APART_S and not confirmed:
        way = "after" if since_record_s > 0 else "before"
        apart_text = duration_text(round(abs(since_record_s) / _HOUR_S) * _HOUR_S)
        return (
            f"by its clock the coordinator began {apart_text} {way} the last record of its "
            "journal, and most nodes do not confirm the time"
        )
    return ""


def hourly(total: int, keep_s: float) -> int:
    """How many of `total` may go in an hour for being older than `keep_s`: a 24th of them, or
    twice what ends in an hour where less than two days are kept; a few in any case."""
    share = 1.0 if keep_s <= 2 * _HOUR_S else max(_SHARE, 2 * _HOUR_S / keep_s)
    return max(_LEAST, math.ceil(total * share))


@dataclass(slots=True)
class Allowance:
    """How many may go now: what an hour allows at the beginning, and again as time passes."""

    left: float | None = None
    at: float = 0.0

    def look(self, mono: float, total: int, keep_s: float) -> int:
        """Of `total` that there are at `mono`."""
        most = hourly(total, keep_s)
        grown = most * (mono - self.at) / _HOUR_S
        self.left = most if self.left is None else min(most, self.left + grown)
        self.at = mono
        return int(self.left)

    def take(self, count: int) -> None:
        self.left = (self.left or 0.0) - count
