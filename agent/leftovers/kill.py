"""The last resort: find and kill the processes of a task whose shim is dead.

Its cgroup lists them all. Without one, they are the processes with the shim's mark in their initial
environment, and their descendants.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from agent.shim.system import syscalls
from agent.shim.system.cgroup import Cgroup
from agent.shim.system.process_tree import signal_exactly

MARK = "MUSTER_SHIM"
GIVE_UP_S = 60.0
ROUND_S = 0.02


def kill_everything_of(mark: str, cgroup: Cgroup | None, give_up_s: float = GIVE_UP_S) -> list[int]:
    """Send SIGKILL until none is left. Returns those that the kernel still holds after `give_up_s`.
    Blocks.
    """
    deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + give_up_s
    found: dict[int, int] = {}
    while True:
        if cgroup is not None:
            cgroup.kill()
        # A dying process has no environment and no descendants any more, but still its devices.
        found = _members(mark, cgroup) | _still(found)
        if not found and (cgroup is None or not cgroup.populated()):
            if cgroup is not None:
                cgroup.remove()
            return []
        if time.clock_gettime(time.CLOCK_BOOTTIME) > deadline:
            return sorted(found)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid, start in found.items():
                signal_exactly(pid, start, number)
        # The kernel announces a death only to the parent, which this process is not.
        time.sleep(ROUND_S)


def all_doomed(mark: str, cgroup: Cgroup | None) -> bool:
    """True if all of them are held by the kernel and will never run their program again."""
    found = _members(mark, cgroup)
    return all(map(syscalls.doomed, found)) and _members(mark, cgroup).keys() <= found.keys()


def _still(found: Mapping[int, int]) -> dict[int, int]:
    """Return those of `found` that live."""
    now = syscalls.living(found)
    return {pid: found[pid] for pid, start in now.items() if syscalls.same_start(found[pid], start)}


def _members(mark: str, cgroup: Cgroup | None) -> dict[int, int]:
    """Return the living processes of the task: pid to start time."""
    everyone = syscalls.processes()
    marked = {pid for pid in everyone if _carries(pid, mark)}
    if cgroup is not None:
        marked.update(cgroup.members())
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in everyone.items():
        children.setdefault(parent, []).append(pid)
    todo, found = list(marked), set()
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, ())
    found.discard(os.getpid())
    return syscalls.living(found)


def _carries(pid: int, mark: str) -> bool:
    """True if a process was started with the mark."""
    return mark.encode() in syscalls.values_of(syscalls.environment_of(pid), MARK)
