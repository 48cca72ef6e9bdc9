"""Supervisor of a rig: removes it when its creator exits or dies.

It runs outside the rig's namespaces. Its standard input is a pipe from the creator. The line `keep`
lets the rig outlive the creator, until this process receives SIGTERM; otherwise the end of the pipe
ends the rig. If this process is killed, the rig's processes die with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

INIT = Path(__file__).with_name("init.py")
INTERPRETER = (sys.executable, "-I", "-S")
EMPTY_S = 10.0


def child_of(parent: int) -> int | None:
    """Return the only child of a process, in the numbers of this PID namespace; None if it has
    none.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                return int(entry.name)
    return None


def remove_cgroups(top: Path) -> bool:
    """Remove a tree of cgroups once its processes are gone. Returns False if some remain."""
    deadline = time.monotonic() + EMPTY_S
    while top.exists():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def await_end() -> None:
    """Wait until the creator closes the pipe or dies, or for SIGTERM."""
    if sys.stdin.readline() == "keep\n":
        signal.pause()


def main() -> None:
    cgroups, folder = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--mount-proc"]
    hub = subprocess.Popen(
        [*argv, "--fork", "--kill-child", *INTERPRETER, str(INIT)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert hub.stdout is not None
    try:
        if hub.stdout.readline() != b"ready\n":
            sys.exit(1)
        print(child_of(hub.pid), flush=True)
        await_end()
    finally:
        # The hub's first process returns when all its descendants are dead and reaped.
        first = child_of(hub.pid)
        if first is not None:
            os.kill(first, signal.SIGKILL)
        hub.wait()
        if cgroups:
            remove_cgroups(Path(cgroups))
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
