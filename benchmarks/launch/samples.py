"""Samples and their summary statistics."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Aim:
    """What a median is to reach: at most `value`, or at least where `least` is set."""

    value: float
    least: bool = False

    def met(self, median: float) -> bool:
        return median >= self.value if self.least else median <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.least else '<='} {self.value:g}"


@dataclass(slots=True)
class Row:
    """One line of the table. `who` is ours, peer or floor; `aim` only where there is one."""

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
        """The smallest sample that is not exceeded by so many of 100."""
        ordered = sorted(self.samples)
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest sample."""
        return min(self.samples), max(self.samples)
