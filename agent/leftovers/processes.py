"""Leftover processes: of jobs whose shim is dead and whose directory is gone.

An agent kills the processes of tasks in its own state directory. These are others: of a removed or
replaced state directory, or of an agent that no longer serves this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from agent.leftovers.kill import MARK, kill_everything_of
from agent.shim.system import syscalls
from agent.shim.system.cgroup import remove_dead

_SHIM: Final = "muster-shim\n"
_NAMED: Final = 4
_AT_ONCE: Final = 256
# Mark of a shim: task, pid, start time. Any user can put any text into an environment.
_MARK: Final = re.compile(r"[0-9A-Za-z._-]{1,64}:[0-9]{1,10}:[0-9]{1,20}")


class LeftoverProcess(NamedTuple):
    """A process. `mark` is that of its shim, which names the task."""

    pid: int
    name: str
    mark: str

    @property
    def task(self) -> str:
        return self.mark.partition(":")[0]


def leftover_processes() -> tuple[LeftoverProcess, ...]:
    """Return all visible leftover processes of this machine, by pid."""
    marked: dict[str, list[int]] = {}
    for pid, (state, _) in syscalls.processes().items():
        if state in "ZX":
            continue
        for value in syscalls.values_of(syscalls.environment_of(pid), MARK):
            mark = value.decode(errors="replace")
            if _MARK.fullmatch(mark):
                marked.setdefault(mark, []).append(pid)
    found = []
    for mark, pids in marked.items():
        # The shim of a container on this machine has another pid here.
        if not _shim_lives(mark) and any(_ours(pid) for pid in pids):
            found += [LeftoverProcess(pid, _read(pid, "comm").strip(), mark) for pid in pids]
    return tuple(sorted(found))


def kill_leftovers(found: Iterable[LeftoverProcess]) -> list[int]:
    """Send SIGKILL to them and their descendants. Returns those that the kernel holds. Blocks."""
    marks = sorted({remain.mark for remain in found})
    # Wait for all that the kernel holds together.
    with ThreadPoolExecutor(_AT_ONCE, "remains") as threads:
        held = list(threads.map(lambda mark: kill_everything_of(mark, None), marks))
    remove_dead(None)
    return [pid for pids in held for pid in pids]


def describe(found: tuple[LeftoverProcess, ...]) -> str:
    """Return `process 12 (python) of task 7.1.0`, several with commas."""
    named = [f"process {it.pid} ({it.name}) of task {it.task}" for it in found[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ", ".join(named + more)


def _shim_lives(mark: str) -> bool:
    """True if the shim will run its program again. One that is dying closes its connection before
    it is gone, and in a container whose init reaps nothing, a zombie stays.
    """
    pid = mark.split(":")[1:2]
    if not pid or not pid[0].isdecimal() or _read(int(pid[0]), "comm") != _SHIM:
        return False
    return not syscalls.doomed(int(pid[0]))


def _ours(pid: int) -> bool:
    """True if the process is in our pid namespace, and in none below it."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) == 2
    return False


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
