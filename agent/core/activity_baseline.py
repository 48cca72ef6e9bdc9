"""Learns how a rank usually moves, from one look after the other, and says when it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.protocol.hangs import Doing, RankActivity, Sign

FLOORS: Final = {Sign.LOG: 1.0, Sign.NETWORK: 128.0, Sign.HCA: 1024.0, Sign.DISK: 16384.0}
"""Bytes a second from which a rank moves. Below it are what helpers of a rank that hangs still
send (a monitor's beat), and what a port carries for itself."""
CPU_SHARE: Final = 0.03
"""Of one core. The threads that watch a rank which waits take less."""
TEACHES: Final = frozenset({Sign.LOG, Sign.NETWORK, Sign.HCA})
"""What steps give. A program that begins reads its libraries from a disk."""
LOUD_LOOKS: Final = 3
"""After so many looks with a sign of steps, gaps between them are its cadence."""
SIGNS_MIN: Final = 2
"""Whoever has only ever given one sign is not judged by its absence."""
TOLD_AFTER: Final = 3
"""A rank is told to be quiet after so many looks without news."""
MISSED: Final = 3
"""Looks that far apart are no evidence: the machine itself may have stood still."""


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """One look: bytes since the last one (None: they cannot be read), seconds of CPU time, and what
    the kernel says. `asked`: whatever the rank has done since it was asked for."""

    at: float
    moved: Mapping[Sign, int | None] = field(default_factory=dict)
    cpu_s: float | None = None
    doing: Doing = Doing.RUNS
    where: str = ""
    asked: bool = False


@dataclass(slots=True)
class ActivityBaseline:
    """Of one rank, since `began`."""

    rank: int
    period_s: float
    began: float
    still_at: float = 0.0
    idle_at: float = 0.0
    seen_at: float = 0.0
    louds: int = 0
    still_gap_s: float = 0.0
    idle_gap_s: float = 0.0
    signs: set[Sign] = field(default_factory=set)
    doing: Doing = Doing.RUNS
    where: str = ""

    def __post_init__(self) -> None:
        self.still_at = self.idle_at = self.seen_at = self.began

    @property
    def learned(self) -> bool:
        return self.louds >= LOUD_LOOKS and len(self.signs) >= SIGNS_MIN

    def take(self, seen: ActivitySample) -> None:
        """Add a look."""
        span = max(seen.at - self.seen_at, 1e-6)
        unseen = span - self.period_s if span > MISSED * self.period_s else 0.0
        if seen.doing is Doing.TRACED or seen.asked:
            # What it does is a debugger's doing, or ours.
            unseen = span
        self.still_at += unseen
        self.idle_at += unseen
        self.seen_at = seen.at
        if seen.asked:
            return
        self.doing, self.where = seen.doing, seen.where
        signs = {
            sign
            for sign, count in seen.moved.items()
            if count is not None and count >= FLOORS[sign] * min(span, self.period_s)
        }
        loud = bool(signs)
        if seen.cpu_s is not None and seen.cpu_s >= CPU_SHARE * span:
            signs.add(Sign.CPU)
        self.signs |= signs
        if signs:
            self.idle_gap_s = max(self.idle_gap_s, self._gap(seen.at - self.idle_at))
            self.idle_at = seen.at
        if loud:
            self.still_gap_s = max(self.still_gap_s, self._gap(seen.at - self.still_at))
            self.still_at = seen.at
        if signs & TEACHES:
            self.louds += 1

    def resume(self, *, still: bool, idle: bool) -> None:
        """Go on as an earlier life had left it, which had told it to be so."""
        quiet_at = self.seen_at - TOLD_AFTER * self.period_s
        self.still_at = quiet_at if still else self.still_at
        self.idle_at = quiet_at if idle else self.idle_at

    def _gap(self, seconds: float) -> float:
        """Without news. What passes before the first steps is no cadence."""
        return max(0.0, seconds - self.period_s) if self.learned else 0.0

    def told(self) -> RankActivity:
        """As of the last look."""
        after = (TOLD_AFTER - 0.5) * self.period_s
        still_s, idle_s = self.seen_at - self.still_at, self.seen_at - self.idle_at
        return RankActivity(
            rank=self.rank,
            learned=self.learned,
            still_s=still_s if still_s >= after else None,
            idle_s=idle_s if idle_s >= after else None,
            still_gap_s=round(self.still_gap_s, 3),
            idle_gap_s=round(self.idle_gap_s, 3),
            doing=self.doing,
            where=self.where if idle_s >= after else "",
            signs=tuple(sign for sign in Sign if sign in self.signs),
        )


def signature(told: RankActivity) -> tuple[object, ...]:
    """What of it is news when it changes."""
    quiet = told.still_s is not None
    # Whether one that moves sleeps at this very moment is no news.
    doing = told.doing if quiet else None
    return told.rank, told.learned, quiet, told.idle_s is not None, doing
