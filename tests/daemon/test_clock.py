"""The system's clocks, read as one instant."""

import time

from muster.daemon.clock import Clock, SystemClock


def test_it_reads_both_clocks() -> None:
    clock: Clock = SystemClock()
    before = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    now = clock.now()
    after = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    assert before[0] <= now.mono <= after[0]
    assert before[1] <= now.wall <= after[1]
