"""Statistics of the coordinator about its own work, for export as metrics."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from muster.protocol.outcome import CauseCode
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf

FAST_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bucket bounds in seconds for operations that should be instant."""
SLOW_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Bucket bounds in seconds for operations that somebody waits for."""


class Histogram:
    """Count of durations by bucket (seconds; the last bucket has no upper bound)."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class Stats:
    """Counters since the start of this process."""

    def __init__(self) -> None:
        self.turns = Histogram(FAST_S)
        self.commits = Histogram(FAST_S)
        self.facts = 0
        self.attempts_started = 0
        self.attempts_failed: Counter[CauseCode] = Counter()
        self.webhooks_dropped = 0
        self.loop_lag = Histogram(FAST_S)

    def observe(self, facts: Sequence[f.Fact]) -> None:
        """Count facts that were decided."""
        for fact in facts:
            match fact:
                case f.AttemptStarted():
                    self.attempts_started += 1
                case f.StopRequested(_, _, cause) if cause.code is not CauseCode.COMPLETED:
                    self.attempts_failed[cause.code] += 1
                case nf.WebhookSettled(dropped=True):
                    self.webhooks_dropped += 1
                case _:
                    pass
