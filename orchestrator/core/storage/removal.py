"""Safety limits for removal by age: when nothing is removed, and how much at most.

Removal is final and the clock may be wrong. Without limits, one wrong minute would remove the
history of a year.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.spec.units import duration_text

APART_S: Final = 86400.0
"""Difference beyond which two clocks do not agree, in seconds."""
_HOUR_S: Final = 3600.0
_LEAST: Final = 10
_SHARE: Final = 1 / 24


def clock_doubt(since_record_s: float, ahead_s: Sequence[float]) -> str:
    """Return why nothing may be removed by age, as a sentence; empty if the clock is trusted.

    `since_record_s` is the time from the last record of the previous run to this start, by the wall
    clock as it is now. It includes hours without a coordinator, so the agents decide: most of them
    have the right time. `ahead_s` has the lead of each connected agent's wall clock over ours.
    """
    apart = sum(abs(ahead) > APART_S for ahead in ahead_s)
    if apart > len(ahead_s) - apart:
        return (
            f"the clocks of {apart} of {len(ahead_s)} connected nodes differ by more than a day "
            "from the coordinator's"
        )
    if abs(since_record_s) > APART_S and not _confirmed(ahead_s):
        way = "after" if since_record_s > 0 else "before"
        apart_text = duration_text(round(abs(since_record_s) / _HOUR_S) * _HOUR_S)
        return (
            f"by its clock the coordinator began {apart_text} {way} the last record of its "
            "journal, and most nodes have another time"
        )
    return ""


def may_remove_by_age(up_s: float, ahead_s: Sequence[float]) -> bool:
    """Return whether nodes could contradict the clock of a coordinator that began `up_s` ago.

    Most connected nodes agree with it, or it has waited an hour for them. `ahead_s` is as in
    `clock_doubt`. Without this, each restart with a wrong clock removes some history before the
    first node is connected.
    """
    return up_s >= _HOUR_S or _confirmed(ahead_s)


def _confirmed(ahead_s: Sequence[float]) -> bool:
    return 2 * sum(abs(ahead) > APART_S for ahead in ahead_s) < len(ahead_s)


def hourly(total: int, keep_s: float) -> int:
    """Number of `total` that may be removed in an hour for being older than `keep_s`.

    A 24th of them, or twice the number that ends in an hour if `keep_s` is below two days; at least
    a few.
    """
    share = 1.0 if keep_s <= 2 * _HOUR_S else max(_SHARE, 2 * _HOUR_S / keep_s)
    return max(_LEAST, math.ceil(total * share))


@dataclass(slots=True)
class Allowance:
    """Rate limit of removals: empty at the first look, so that restarts add nothing; filled as time
    passes.
    """

    left: float = 0.0
    at: float | None = None

    def look(self, mono: float, total: int, keep_s: float) -> int:
        """The number that may be removed now, of `total` that exist at `mono`."""
        most = hourly(total, keep_s)
        passed_s = 0.0 if self.at is None else mono - self.at
        self.left = min(most, self.left + most * passed_s / _HOUR_S)
        self.at = mono
        return int(self.left)

    def take(self, count: int) -> None:
        self.left -= count
