"""The limit of this process's file descriptors, and the part that each daemon keeps free."""

import resource
from typing import Final

RESERVE: Final = 64
"""In the coordinator for agents and short requests, in the agent for the tasks that run."""


def descriptor_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit
