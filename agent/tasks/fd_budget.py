"""File descriptors: keep enough for the link, the logs and the running tasks."""

from __future__ import annotations

import os
import resource
from typing import Final

from muster.daemon.errors import DaemonError

RESERVE: Final = 64
"""At least this many must be free before another task starts. A task takes about ten, including its
ranks' logs."""


class NoDescriptorsError(DaemonError):
    """A new task might use up the last file descriptors."""


def check_descriptors() -> None:
    """Raises NoDescriptorsError."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = limit
    if limit - used < RESERVE:
        raise NoDescriptorsError(
            f"this agent has {used} of {limit} file descriptors in use, and keeps {RESERVE} for "
            "running tasks: raise its LimitNOFILE"
        )
