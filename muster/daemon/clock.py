"""The one place that reads the clock, so that everything else can be given a time in a test."""

import time
from typing import Protocol

from muster.protocol.instant import Instant


class Clock(Protocol):
    """Whatever tells the time: the system, or a simulation."""

    def now(self) -> Instant:
        """The present moment."""
        ...


class SystemClock:
    """The machine's own clocks.

    CLOCK_BOOTTIME, because CLOCK_MONOTONIC stands still while a machine is suspended: a lease
    measured on it would outlive the coordinator's idea of it.
    """

    def now(self) -> Instant:
        """The present moment."""
        return Instant(mono=time.clock_gettime(time.CLOCK_BOOTTIME), wall=time.time())
