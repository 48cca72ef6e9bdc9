"""Learn a rank's usual activity from periodic samples, and report when the rank goes quiet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.protocol.observations.hangs import Doing, RankActivity, Sign

FLOORS: Final = {Sign.LOG: 1.0, Sign.NETWORK: 128.0, Sign.HCA: 1024.0, Sign.DISK: 16384.0}
"""Bytes per second from which a rank counts as active. Below it are the helpers of a hung rank (a
monitor's heartbeat) and a port's own traffic."""
CPU_SHARE: Final = 0.03
"""Share of one core. Threads that watch a waiting rank use less."""
TEACHES: Final = frozenset({Sign.LOG, Sign.NETWORK, Sign.HCA})
"""Signs that training steps produce. Disk reads do not count: a starting program reads its
libraries from disk."""
LOUD_LOOKS: Final = 3
"""After this many samples with a sign of steps, the gaps between them are the rank's cadence."""
SIGNS_MIN: Final = 2
"""A rank that has only ever shown one sign is not judged by the absence of that sign."""
TOLD_AFTER: Final = 3
"""A rank is reported as quiet after this many samples without activity."""
MISSED: Final = 3
"""A gap of this many periods between samples is no evidence: the machine itself may have
stalled."""


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """A sample: bytes since the previous one (None: unreadable), seconds of CPU time, and the
    state from the kernel. `asked`: the sample covers work that the agent itself caused in the rank.
    """

    at: float
    moved: Mapping[Sign, int | None] = field(default_factory=dict)
    cpu_s: float | None = None
    doing: Doing = Doing.RUNS
    where: str = ""
    asked: bool = False


@dataclass(slots=True)
class ActivityBaseline:
    """The activity of one rank since `began`."""

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
        """Add a sample."""
        span = max(seen.at - self.seen_at, 1e-6)
        unseen = span - self.period_s if span > MISSED * self.period_s else 0.0
        if seen.doing is Doing.TRACED or seen.asked:
            # A debugger, or this agent, causes what the rank does now.
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
        """Restore the quiet state that an earlier agent process reported."""
        quiet_at = self.seen_at - TOLD_AFTER * self.period_s
        self.still_at = quiet_at if still else self.still_at
        self.idle_at = quiet_at if idle else self.idle_at

    def _gap(self, seconds: float) -> float:
        """The part of a gap that counts as silence. The wait before the first steps is no
        cadence."""
        return max(0.0, seconds - self.period_s) if self.learned else 0.0

    def activity(self) -> RankActivity:
        """The activity to report, as of the last sample."""
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


def signature(activity: RankActivity) -> tuple[object, ...]:
    """The part of an activity that is worth a report when it changes."""
    quiet = activity.still_s is not None
    # An active rank may sleep at the moment of the sample; that is not worth a report.
    doing = activity.doing if quiet else None
    return activity.rank, activity.learned, quiet, activity.idle_s is not None, doing
