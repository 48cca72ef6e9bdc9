"""The one place that reads the clock. Everything else gets the time as an input, so tests can set
it.
"""

import time
from typing import Protocol

from muster.protocol.instant import Instant


class Clock(Protocol):
    """A source of time: the system, or a simulation."""

    def now(self) -> Instant:
        """The present moment."""
        ...


class SystemClock:
    """The machine's own clocks.

    CLOCK_BOOTTIME, because CLOCK_MONOTONIC stops while a machine is suspended. A lease measured on
    that would outlive the coordinator's estimate of it.
    """

    def now(self) -> Instant:
        """The present moment."""
        return Instant(mono=time.clock_gettime(time.CLOCK_BOOTTIME), wall=time.time())
