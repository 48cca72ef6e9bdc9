"""A local process without any right that takes whatever an agent may need to be alone: names of
sockets, and locks of files that it can open. It says what it has, then waits to be ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

NAMES = ("muster-agent", "muster", "muster-agent.lock")
FOLDERS = ("/run/muster", "/run/lock", "/var/lock", "/run", "/tmp")


def main() -> None:
    """The arguments are more folders, in which the names of files are known."""
    held: list[object] = []
    for name in NAMES:
        with contextlib.suppress(OSError):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            claim.bind(f"\0{name}")
            claim.listen(1)
            held.append(claim)
    for path in _files(sys.argv[1:]):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(fd)
    print(f"holds {len(held)}", flush=True)
    while held:
        time.sleep(60.0)


def _files(more: list[str]) -> list[Path]:
    found = [Path(folder, name) for folder in more for name in ("lock", "agent.lock")]
    for folder in (*FOLDERS, *more):
        with contextlib.suppress(OSError):
            found += [path for path in Path(folder).iterdir() if path.is_file()]
    return found


if __name__ == "__main__":
    main()
