"""All processes of a task: list them, signal some, kill all.

The shim is the sub-reaper of everything it starts, so a process that loses its parent becomes the
shim's child. With or without a cgroup, an empty tree therefore means that waitpid finds no child.
The cgroup makes the kill a single operation.
"""

from __future__ import annotations

import os
import signal

from agent.shim.system.cgroup import Cgroup
from agent.shim.system.syscalls import (
    descendants,
    doomed,
    living,
    same_start,
    stat_of,
    state_of,
)


class ProcessTree:
    """The processes below this one and, if there is a cgroup, those in it."""

    def __init__(self, cgroup: Cgroup | None, shim: int | None = None) -> None:
        """`shim`: the pid of the task's shim if this process is not it."""
        self.cgroup = cgroup
        self._me = os.getpid() if shim is None else shim

    def members(self) -> dict[int, int]:
        """Living processes of the task: pid to start time."""
        found = descendants(self._me)
        if self.cgroup is not None:
            found |= living(pid for pid in self.cgroup.members() if pid not in found)
        found.pop(self._me, None)
        return found

    def has(self, pid: object) -> bool:
        """True if this process, which may be a zombie, descends from the shim."""
        while isinstance(pid, int) and pid > 1 and pid != self._me:
            state = state_of(pid)
            pid = None if state is None else state[1]
        return pid == self._me

    def group(self, leader: int) -> list[int]:
        """The process group of `leader`: a program in its own session gets a signal as from Ctrl-C.
        Ranks that the shim starts get it alone, as under torchrun: they end their data loaders.
        """
        return [pid for pid in self.members() if _group_of(pid) == leader]

    def empty(self, childless: bool) -> bool:
        """True if no process is left. `childless`: waitpid has found no child."""
        return childless and not (self.cgroup is not None and self.cgroup.populated())

    def signal(self, pids: list[int], number: int) -> list[int]:
        """Send a signal to those of `pids` that belong to this task; returns them.

        The job reports its own pids, and root must not signal arbitrary processes that a job names.
        """
        members = self.members()
        return [pid for pid in pids if pid in members and signal_exactly(pid, members[pid], number)]

    def kill(self) -> list[int]:
        """SIGKILL every process; returns the pids seen.

        Call again until `empty`, because processes may have forked.
        """
        if self.cgroup is not None:
            self.cgroup.kill()
        members = self.members()
        # Because stopped processes cannot fork, a fork bomb cannot outrun the list.
        if len(members) > 1:
            for pid, start in members.items():
                signal_exactly(pid, start, signal.SIGSTOP)
            members |= self.members()
        for pid, start in members.items():
            signal_exactly(pid, start, signal.SIGKILL)
        return sorted(members)

    def doomed(self) -> bool:
        """True if no process of the task will run its program again, even if the kernel still holds
        some.

        A process that could still fork may have a child that is not listed yet. Therefore the
        second list must be contained in the first.
        """
        members = self.members()
        return all(map(doomed, members)) and self.members().keys() <= members.keys()


def signal_exactly(pid: int, start: int, number: int) -> bool:
    """Signal the process with this pid and start time. Returns False if that process is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:
        # On kernels before 5.3, or with no descriptor left: a tiny race is better than a survivor.
        return _still(pid, start) and _kill(pid, number)
    try:
        if not _still(pid, start):
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    except OSError:
        return _kill(pid, number)
    finally:
        os.close(fd)
    return True


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _still(pid: int, start: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and same_start(start, stat[2])


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
