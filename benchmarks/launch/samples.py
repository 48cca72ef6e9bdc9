"""Samples and their summary statistics."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Aim:
    """Target of a percentile, by default the median: at most `value`, or at least if `least` is
    set.
    """

    value: float
    least: bool = False
    percent: int = 50

    def met(self, found: float) -> bool:
        return found >= self.value if self.least else found <= self.value

    def __str__(self) -> str:
        which = "" if self.percent == 50 else f"p{self.percent} "
        return f"{which}{'>=' if self.least else '<='} {self.value:g}"


@dataclass(slots=True)
class Row:
    """A line of the table. `who` is ours, peer or floor; `aim` is the target, if any."""

    figure: str
    what: str
    who: str
    unit: str = "ms"
    aim: Aim | None = None
    samples: list[float] = field(default_factory=list)

    def add(self, sample: float) -> None:
        self.samples.append(sample)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        return self.percentile(95)

    def percentile(self, percent: int) -> float:
        """Return the smallest sample that at least `percent` of the samples do not exceed."""
        ordered = sorted(self.samples)
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    @property
    def is_met(self) -> bool | None:
        """True if the target is met; None if there is none."""
        if self.aim is None:
            return None
        percent = self.aim.percent
        return self.aim.met(self.median if percent == 50 else self.percentile(percent))

    @property
    def spread(self) -> tuple[float, float]:
        """Return the least and the greatest sample."""
        return min(self.samples), max(self.samples)
