"""Others who write to a hosts file, each in its own way, as fast as they can: `python writers.py
WAY PATH FIRST COUNT` adds COUNT lines and prints nothing."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path


def line(number: int) -> bytes:
    return f"10.77.{number // 250}.{number % 250 + 1}\tother-{number}\n".encode()


def append(path: Path, number: int) -> None:
    """Append like `echo >> FILE`."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, line(number))
    os.close(fd)


def rename(path: Path, number: int) -> None:
    """Replace the file, like configuration tools and `sed -i`."""
    text = path.read_bytes()
    new = path.with_name("other.tmp")
    new.write_bytes(text + line(number))
    new.rename(path)


def flock(path: Path, number: int) -> None:
    """Lock, read, write in place."""
    _locked(path, number, lambda fd: fcntl.flock(fd, fcntl.LOCK_EX))


def lockf(path: Path, number: int) -> None:
    """The same with the other kind of lock."""
    _locked(path, number, lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX))


def _locked(path: Path, number: int, lock: Callable[[int], None]) -> None:
    with path.open("r+b") as file:
        lock(file.fileno())
        text = file.read()
        file.seek(0)
        file.write(text + line(number))
        file.truncate()
        file.flush()


WAYS = {"append": append, "rename": rename, "flock": flock, "lockf": lockf}

if __name__ == "__main__":
    way, path, first, count = WAYS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    for number in range(first, first + int(count)):
        way(path, number)
