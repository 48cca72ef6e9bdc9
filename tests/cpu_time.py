"""CPU time of another process: a measure of waits that other tests do not change."""

import time


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far.

    The kernel names the clock of a process by the complement of its pid and CPUCLOCK_SCHED (2).
    """
    return time.clock_gettime((~pid << 3) | 2)
