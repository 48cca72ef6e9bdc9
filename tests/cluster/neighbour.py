"""Run by a job against another user's job on the same node: try each way in, and write down how
each ended. Root, for whom all of them work, shows that the tries are sound.

    python neighbour.py TARGETS.json REPORT.json
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

Try = Callable[[], object]
IN = "in"
_SEIZE = 0x4206
_PIDFD_GETFD = 438
_ANSWER_S = 10.0


def tries(targets: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Yield each way in with its name."""
    for pid in targets["pids"]:
        for name, attempt in of_process(pid).items():
            yield f"process {pid}: {name}", attempt
    for mode, path in targets["paths"]:
        for name, attempt in of_path(mode, path).items():
            yield f"{path}: {name}", attempt
    for address, port in targets["ports"]:
        yield f"port {address}:{port}", partial(connect, (address, port))
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        for mark in targets["marks"]:
            yield f"leftover in {place}", partial(found, f"{place}/*{mark}*")
    for mark in targets["marks"]:
        yield "message queue", partial(called, "mq_open", f"/{mark}.0".encode(), os.O_RDONLY)
        for kind in ("shm", "msg", "sem"):
            yield f"System V {kind}", partial(of_others, kind)


def of_process(pid: int) -> dict[str, Try]:
    proc = f"/proc/{pid}"
    files = ("environ", "cmdline", "maps", "mem", "status")
    folders = ("fd", "root", "cwd", "task")
    return {
        "stat": lambda: os.stat(proc),
        **{name: partial(opened, f"{proc}/{name}", os.O_RDONLY) for name in files},
        **{name: partial(os.listdir, f"{proc}/{name}") for name in folders},
        "write to its output": lambda: opened(f"{proc}/fd/1", os.O_WRONLY | os.O_APPEND),
        "signal": lambda: os.kill(pid, 0),
        "trace": lambda: called("ptrace", _SEIZE, pid, None, None),
        "take a descriptor": lambda: take_descriptor(pid),
        "priority": lambda: os.setpriority(
            os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)
        ),
        "processors": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
    }


def of_path(mode: int, path: str) -> dict[str, Try]:
    if stat.S_ISSOCK(mode):
        return {"connect": lambda: connect_to(path)}
    if stat.S_ISDIR(mode):
        return {"list": lambda: os.listdir(path), "make": lambda: make(f"{path}/of-a-neighbour")}
    return {
        "read": lambda: opened(path, os.O_RDONLY),
        "append": lambda: opened(path, os.O_WRONLY | os.O_APPEND),
    }


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK))


def make(path: str) -> None:
    opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.unlink(path)


def connect(at: tuple[str, int]) -> None:
    socket.create_connection(at, timeout=_ANSWER_S).close()


def connect_to(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)


def found(pattern: str) -> None:
    if not glob.glob(pattern):
        raise FileNotFoundError(errno.ENOENT, pattern)


def of_others(kind: str) -> None:
    with open(f"/proc/sysvipc/{kind}") as file:
        names, *rows = map(str.split, file)
    if not [row for row in rows if row[names.index("uid")] != str(os.getuid())]:
        raise FileNotFoundError(errno.ENOENT, kind)


def take_descriptor(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        os.close(called("syscall", _PIDFD_GETFD, fd, 1, 0))
    finally:
        os.close(fd)


def called(function: str, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(libc, function)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), function)
    return result


def outcome(attempt: Try) -> str:
    try:
        attempt()
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    return IN


def main() -> None:
    with open(sys.argv[1]) as file:
        targets = json.load(file)
    report = {name: outcome(attempt) for name, attempt in tries(targets)}
    with open(f"{sys.argv[2]}.new", "w") as file:
        json.dump(report, file)
    os.rename(f"{sys.argv[2]}.new", sys.argv[2])


if __name__ == "__main__":
    main()
