"""Samples and their summary statistics."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Aim:
    """Target of a median: at most `value`, or at least if `least` is set."""

    value: float
    least: bool = False

    def met(self, median: float) -> bool:
        return median >= self.value if self.least else median <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.least else '<='} {self.value:g}"


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
    def spread(self) -> tuple[float, float]:
        """Return the least and the greatest sample."""
        return min(self.samples), max(self.samples)
