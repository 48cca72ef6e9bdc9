"""File descriptors reserved for agents, for short requests and for the coordinator's own files.

The kernel assigns the lowest free number. Refusing connections with numbers near the limit
therefore keeps the last descriptors free, however many clients connect.
"""

import os
from typing import Final

from muster.daemon.descriptors import RESERVE, descriptor_limit

HINT: Final = "close unused streams (logs -f, events -f), or raise its LimitNOFILE"


def is_short(number: int) -> bool:
    """True if a connection with this descriptor falls into the part reserved for agents and for
    requests that are answered at once.
    """
    limit = descriptor_limit()
    return number >= limit - _reserve(limit)


def is_last(number: int) -> bool:
    """True if a connection with this descriptor falls into the part that our own files need."""
    limit = descriptor_limit()
    return number >= limit - _reserve(limit) // 2


def shortage() -> str:
    """Return an error message if the next connection would fall into the reserve, else ""."""
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
        f"the coordinator has nearly all of its {descriptor_limit()} file descriptors in use, "
        "and keeps the rest for agents and for short requests"
    )


def _reserve(limit: int) -> int:
    return min(RESERVE, limit // 4)
