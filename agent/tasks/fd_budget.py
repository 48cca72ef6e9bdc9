"""File descriptors: keep enough for the link, the logs and the running tasks."""

from __future__ import annotations

import os

from muster.daemon.descriptors import RESERVE, descriptor_limit
from muster.daemon.errors import DaemonError


class NoDescriptorsError(DaemonError):
    """A new task might use up the last file descriptors."""


def check_descriptors() -> None:
    """Raises NoDescriptorsError if fewer than RESERVE are free. A task takes about ten, including
    its ranks' logs."""
    limit = descriptor_limit()
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = limit
    if limit - used < RESERVE:
        raise NoDescriptorsError(
            f"this agent has {used} of {limit} file descriptors in use, and keeps {RESERVE} for "
            "running tasks: raise its LimitNOFILE"
        )
