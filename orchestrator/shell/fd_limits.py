"""File descriptors: the last ones are kept for agents, for short requests and for our own files.

The kernel gives the lowest number that is free. Whoever is not let have a number near the limit
never takes the last ones, however many come.
"""

import os
import resource
from typing import Final

RESERVE: Final = 64
HINT: Final = "close streams that nobody reads (logs -f, events -f), or raise its LimitNOFILE"


def is_short(number: int) -> bool:
    """Whether a connection of this number is in the part that is kept for agents, and for requests
    that are answered at once."""
    limit = _limit()
    return number >= limit - _reserve(limit)


def is_last(number: int) -> bool:
    """Whether a connection of this number would take what our own files need."""
    limit = _limit()
    return number >= limit - _reserve(limit) // 2


def shortage() -> str:
    """A sentence where the next connection would be short of them, "" where it would not."""
    try:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        short = True
    else:
        os.close(fd)
        short = is_short(fd)
    if not short:
        return ""
    return (
        f"the coordinator has nearly all of its {_limit()} file descriptors in use, and keeps the "
        "rest for agents and for short requests"
    )


def _limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


def _reserve(limit: int) -> int:
    return min(RESERVE, limit // 4)
