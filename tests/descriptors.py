"""File descriptors of this process: those open under a folder, and too few of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def descriptors_left(count: int = 0) -> Iterator[None]:
    """So many more can be opened in this process; what is open stays. Of 0 that holds whatever is
    closed meanwhile."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1
    with ExitStack() as gaps:
        if count:  # the limit is one of numbers: none below it may be free
            free, last = -1, max(int(name) for name in os.listdir("/proc/self/fd"))
            while free <= last:
                free = os.dup(0)
                gaps.callback(os.close, free)
            most = free + 1 + count
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limit[1]))
        gaps.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        yield


def open_under(folder: Path) -> list[str]:
    """Paths under a folder that this process has open, sorted. Descriptors that other tests left
    open, or that are closed by chance meanwhile, are not among them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor that listed the folder is closed
            path = os.readlink(f"/proc/self/fd/{name}")
            if Path(path).is_relative_to(folder):
                found.append(path)
    return sorted(found)
