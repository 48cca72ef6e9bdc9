"""File descriptors: enough are kept for the link, the logs and the tasks that run."""

from __future__ import annotations

import os
import resource
from typing import Final

from muster.daemon.errors import DaemonError

RESERVE: Final = 64
"""So many must be left before another task begins. One takes some ten, its ranks' logs included."""


class NoDescriptorsError(DaemonError):
    """A task that began now might take the last ones."""


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
            "what runs: raise its LimitNOFILE"
        )
