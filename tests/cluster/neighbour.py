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
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

Try = Callable[[], object]
IN = "in"
_SEIZE = 0x4206
_PIDFD_GETFD = 438
_ANSWER_S = 10.0
_STORE_S = 60.0
_BUS = "/run/dbus/system_bus_socket"
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
# systemctl as a user goes the same way. busctl says what failed.
_ASKS = {
    "processes": ("busctl", "call", *_MANAGER, f"{_MANAGER[0]}.Manager", "GetUnitProcesses", "s"),
    "path": ("busctl", "call", *_MANAGER, f"{_MANAGER[0]}.Manager", "GetUnit", "s"),
    "status": ("systemctl", "status", "--no-pager"),
    "properties": ("systemctl", "show", "--all"),
}


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
        yield f"store {address}:{port}", partial(overwrite, (address, port))
    for unit in targets["units"]:
        for name, words in _ASKS.items():
            yield f"{unit}: {name}", partial(ask, *words, unit)
        yield f"{unit}: bus", partial(connect_to, _BUS, socket.SOCK_STREAM)
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


def connect_to(path: str, kind: int = socket.SOCK_SEQPACKET) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.connect(path)


def overwrite(at: tuple[str, int]) -> None:
    """Write into the store of a job, which has no password. Where no connection is possible, nor
    is this."""
    connect(at)
    from torch.distributed import TCPStore

    store = TCPStore(*at, is_master=False, timeout=timedelta(seconds=_STORE_S))
    assert store.num_keys() > 0
    store.set("of-a-neighbour", "was here")
    assert store.get("of-a-neighbour") == b"was here"


def ask(*argv: str) -> None:
    """Ask systemd about a unit, over the system bus."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        refused = {"No such file": errno.ENOENT, "Connection refused": errno.ECONNREFUSED}
        code = next((it for text, it in refused.items() if text in done.stderr), errno.EIO)
        raise OSError(code, done.stderr)


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
