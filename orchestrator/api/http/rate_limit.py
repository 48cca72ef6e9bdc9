"""Token buckets: a request rate per caller, with a burst of ten seconds' worth by default."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 10.0
CALLERS_MAX: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class RateLimit:
    """A bucket per caller. Full buckets are dropped once there are many."""

    def __init__(self, per_s: float, burst: float = 0.0) -> None:
        """`burst`: requests that pass at once."""
        self._per_s = per_s
        self._burst = burst or max(per_s * BURST_S, 1.0)
        self._buckets: dict[Hashable, _Bucket] = {}

    def take(self, caller: Hashable, now: float) -> float:
        """Count one request at `now` (monotonic seconds). Returns 0 if it may pass, else the
        seconds until the next one may.
        """
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= CALLERS_MAX:
                self._forget(now)
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._per_s)
        bucket.at = now
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self._per_s
        bucket.left -= 1.0
        return 0.0

    def _forget(self, now: float) -> None:
        full_s = self._burst / self._per_s
        full = [name for name, b in self._buckets.items() if now - b.at >= full_s]
        # If no caller is idle, drop the oldest: a flood of addresses must not fill the memory.
        for name in full or list(self._buckets)[: CALLERS_MAX // 2]:
            del self._buckets[name]
