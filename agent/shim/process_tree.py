"""All processes of a task: who they are, a signal for one, death for all.

The shim is the sub-reaper of everything it starts, so whoever loses its parent becomes its child.
That makes "no child left to wait for" the proof of an empty tree, with or without a cgroup; the
cgroup makes the kill a single act.
"""

from __future__ import annotations

import os
import signal

from agent.shim.cgroup import Cgroup
from agent.shim.syscalls import descendants, doomed, stat_of


class Tree:
    """The processes below this one, and those in its cgroup where it has one."""

    def __init__(self, cgroup: Cgroup | None, shim: int | None = None) -> None:
        """`shim`: the pid of the task's shim if this process is not it."""
        self.cgroup = cgroup
        self._me = os.getpid() if shim is None else shim

    def members(self) -> dict[int, int]:
        """Living processes of the task: pid to start time."""
        found = descendants(self._me)
        if self.cgroup is not None:
            for pid in self.cgroup.members():
                stat = stat_of(pid)
                if stat is not None and stat[0] not in "ZX":
                    found[pid] = stat[2]
        found.pop(self._me, None)
        return found

    def empty(self, childless: bool) -> bool:
        """True when no process is left; `childless`: waitpid has said that we have no child."""
        return childless and not (self.cgroup is not None and self.cgroup.populated())

    def signal(self, pids: list[int], number: int) -> list[int]:
        """Send a signal to those of `pids` that are of this task; returns them.

        The job names its own pids, and root must not signal whomever a job names.
        """
        members = self.members()
        return [pid for pid in pids if pid in members and signal_exactly(pid, members[pid], number)]

    def kill(self) -> list[int]:
        """SIGKILL for every process; returns those seen.

        Call again until `empty`: they may have forked.
        """
        if self.cgroup is not None:
            self.cgroup.kill()
        members = self.members()
        # Stopped first, a fork bomb cannot outrun the list.
        if len(members) > 1:
            for pid, start in members.items():
                signal_exactly(pid, start, signal.SIGSTOP)
            members |= self.members()
        for pid, start in members.items():
            signal_exactly(pid, start, signal.SIGKILL)
        return sorted(members)

    def doomed(self) -> bool:
        """Whether nothing of the task will ever compute again, though the kernel holds some of it.

        Where one that could still fork was seen, its child may be in no list yet: those that are
        there afterwards have been judged before.
        """
        members = self.members()
        return all(map(doomed, members)) and self.members().keys() <= members.keys()


def signal_exactly(pid: int, start: int, number: int) -> bool:
    """Signal the process that has this pid and start time; False where that one is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:
        # Kernels before 5.3, or no descriptor left: a tiny window is better than a survivor.
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


def _still(pid: int, start: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[2] == start


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
